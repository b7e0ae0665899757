"""Transactions: which agent coordinates an id, and how transactions end."""
