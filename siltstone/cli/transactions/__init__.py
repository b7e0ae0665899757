"""`siltstone transactions`: which transactions there are, which hang, and how one is aborted."""
