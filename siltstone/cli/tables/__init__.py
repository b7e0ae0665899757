"""`siltstone tables`."""
