"""Commands that run compaction, or show what it does."""
