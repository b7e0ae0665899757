"""Kafka clients of every kind with stock settings, a process each, which say what they write, read and suffer."""
