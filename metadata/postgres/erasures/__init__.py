"""Erasures in Postgres: requests and their stages, and the extents that they wait for."""
