"""A group of drafters that guess together: to the engine a drafter like any other."""
