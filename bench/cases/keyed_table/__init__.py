"""Changed keys merged into an Iceberg table with one row per key."""
