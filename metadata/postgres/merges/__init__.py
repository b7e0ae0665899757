"""What compactors ask for: views, durable jobs, commits of merges, retention."""
