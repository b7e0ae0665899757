"""Kafka's topic and broker configs: tables of their types and valid values, and how they are altered. Pure."""
