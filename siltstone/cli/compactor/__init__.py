"""`siltstone compactor`."""
