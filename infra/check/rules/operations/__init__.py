"""Rules for the second day: what is heard of trouble, what AWS starts by itself, and what gets old."""
