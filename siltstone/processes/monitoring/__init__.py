"""The side of a process that is watched: its HTTP endpoint, its figures, its log and traces."""
