"""The processes that run until they are stopped: agent and compactor, and the parts that both share."""
