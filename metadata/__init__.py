"""The metadata store: its contract, its Postgres and memory implementations, and the numbered invariants."""
