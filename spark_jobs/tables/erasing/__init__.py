"""Erasures of a topic carried on to its tables."""
