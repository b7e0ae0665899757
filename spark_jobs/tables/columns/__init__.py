"""Values of records as columns of a table: kinds, schemas, rows. Pure."""
