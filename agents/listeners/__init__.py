"""Where clients connect to an agent: its listeners, and the endpoints that they are told."""
