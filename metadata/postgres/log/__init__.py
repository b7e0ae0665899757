"""The calls of agents: leases, topics, commits of L0 files, the tail."""
