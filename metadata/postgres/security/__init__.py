"""Users, ACLs and quotas in Postgres."""
