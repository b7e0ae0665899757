"""Merges and tables that run on Spark, and topics as a source for Spark."""
