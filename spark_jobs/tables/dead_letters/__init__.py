"""Records that do not fit their topic's table, in a table of their own."""
