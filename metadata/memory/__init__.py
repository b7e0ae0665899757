"""The metadata store of one process, for tests and `memory://`: the twin that Postgres is compared with."""
