"""The stack that `siltstone dev` brings along: Postgres from a wheel, a local directory as the object store, agents."""
