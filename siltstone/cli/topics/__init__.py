"""`siltstone topics`."""
