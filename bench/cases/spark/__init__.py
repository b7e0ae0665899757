"""Spark: merges on it, and topics read by it."""
