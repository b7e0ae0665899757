"""The servers that a benchmark starts: our own stack, Apache Kafka, an S3 server, databases."""
