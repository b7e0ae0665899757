"""Transactions in Postgres."""
