"""The output that the commands and the demo share: tables, JSON, live pictures, progress bars."""
