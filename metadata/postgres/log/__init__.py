"""What agents ask for: leases, topics, commits of L0 files, the tail."""
