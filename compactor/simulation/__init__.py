"""Days of compaction in seconds: the real planner over a modelled cluster. Pure."""
