"""`siltstone rebuild`: makes the metadata again from the bucket, after Postgres was lost with its backups."""
