"""Dedupe (`cleanup.policy=compact`) of one partition, by the rules of Kafka's LogCleaner."""
