"""Benchmarks of transactions."""
