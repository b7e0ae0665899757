"""An agent's knowledge of its clients and its decisions about them: their names, their rights, their quotas."""
