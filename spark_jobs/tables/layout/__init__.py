"""The sections of a table, which Iceberg calls partitions, and the order of rows in its files."""
