"""Compaction as operators see it: asking for it, running it here, and explaining why a record is still there."""
