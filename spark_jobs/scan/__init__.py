"""Reads a topic straight from the object store, without an agent and without Spark: plan, read, pin."""
