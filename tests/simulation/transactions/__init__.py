"""Transactions over wire bytes, and all that may come between."""
