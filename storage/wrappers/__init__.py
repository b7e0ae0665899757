"""Stores that wrap a store: retries, metrics, traces, and faults for tests."""
