"""`cleanup.policy=compact`: what stays and what goes in one partition, by Kafka's LogCleaner."""
