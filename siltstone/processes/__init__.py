"""Programs that run until they are stopped: the agent, the compactor, and what both open, watch and close."""
