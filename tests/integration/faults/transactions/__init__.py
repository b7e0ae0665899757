"""Transactions of real clients at agent processes, amid faults, and the judge of what came of them."""
