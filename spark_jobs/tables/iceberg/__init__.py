"""Iceberg: catalogs, and tables that take commits of ours."""
