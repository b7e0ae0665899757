"""Stores around a store: retries, metrics, traces, faults for tests."""
