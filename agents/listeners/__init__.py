"""Where clients connect to an agent: its listeners, the endpoints that they are told, and who comes in at what pace."""
