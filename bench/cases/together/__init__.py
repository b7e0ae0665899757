"""Benchmarks of agents, compactors, stores and clients together."""
