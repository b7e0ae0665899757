"""`siltstone produce`, `consume` and `get`."""
