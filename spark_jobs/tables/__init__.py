"""Topics as tables: Parquet directories and Iceberg tables, exactly once over restarts. Needs the extra `tables`."""
