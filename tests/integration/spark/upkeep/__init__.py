"""The upkeep of Iceberg tables."""
