"""The stack of `siltstone dev`: Postgres from a wheel, a local directory as object store, agents and compactors."""
