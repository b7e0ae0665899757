"""The command `siltstone erase`."""
