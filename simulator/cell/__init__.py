"""Devices and verifier servers in a radio cell: channels, tasks, batteries, policies at work."""
