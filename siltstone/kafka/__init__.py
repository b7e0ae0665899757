"""A small Kafka client over our own codec, and what the commands build on it: reading, writing and groups."""
