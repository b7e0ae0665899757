"""Users, ACLs and quotas over the Kafka protocol."""
