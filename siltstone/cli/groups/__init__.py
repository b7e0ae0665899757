"""`siltstone groups`."""
