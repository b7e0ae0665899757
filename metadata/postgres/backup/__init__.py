"""The metadata backup: read out of Postgres, and put back into an empty one."""
