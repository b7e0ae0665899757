"""Planted bugs as data. `make mutants` changes one place of the product for each and runs the tests that must fail."""
