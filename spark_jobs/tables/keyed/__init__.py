"""Tables with one row per key of a topic: rows that a newer record supersedes are deleted by position."""
