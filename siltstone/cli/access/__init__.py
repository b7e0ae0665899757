"""`siltstone users`, `siltstone acls` and `siltstone quotas`."""
