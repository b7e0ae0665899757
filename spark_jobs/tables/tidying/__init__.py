"""Small files of a table, and those with many dead rows, written again as larger ones by the runs that fill it."""
