"""Where a device's session goes, and what share of a server's link and compute it gets (UARA)."""
