"""Holds clients to their quotas."""
