"""`siltstone files` and `siltstone file`."""
