"""Other programs over Iceberg tables that we commit to."""
