"""Stores that wrap a store: retries, second requests, metrics, traces, and faults for tests."""
