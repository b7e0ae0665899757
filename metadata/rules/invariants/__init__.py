"""The numbered invariants of metadata, as predicates."""
