"""A small Kafka client over our own codec, and the reading and writing that the commands do with it."""
