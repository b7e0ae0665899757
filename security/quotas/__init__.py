"""Client quotas: whom they bind, and how much each may do."""
