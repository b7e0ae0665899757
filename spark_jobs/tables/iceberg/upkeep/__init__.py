"""Upkeep of an Iceberg table that takes commits all day: old snapshots expire, and their files go."""
