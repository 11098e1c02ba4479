"""From any checkpoint to a drafter that fits the device."""
