"""The calls of compactors: leases and duties, views, durable jobs, commits of merges."""
