"""`siltstone cluster`."""
