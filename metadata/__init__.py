"""What lies where: the contract, its Postgres and memory implementations, and the numbered invariants."""
