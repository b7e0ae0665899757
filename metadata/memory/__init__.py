"""The metadata store of one process, for tests and `memory://`. Tests compare the Postgres store with it."""
