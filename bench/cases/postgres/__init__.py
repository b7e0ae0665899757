"""Benchmarks of the metadata store alone."""
