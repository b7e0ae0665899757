"""Users, ACLs and quotas in the metadata store."""
