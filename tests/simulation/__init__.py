"""Agents, metadata, objects and time in one process under one seed: see README.md."""
