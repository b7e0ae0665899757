"""Benchmarks that print ratios: see README.md in this folder. Nothing imports this room."""
