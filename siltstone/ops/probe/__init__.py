"""`siltstone probe`: writes to the agents and reads back, as any client does, and tells how it went."""
