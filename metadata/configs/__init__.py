"""Kafka's configs of topics and brokers: tables of what they may be, and how they change. Pure."""
