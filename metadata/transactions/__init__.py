"""Transactions: the contract between their coordinators and the metadata store, and its rules."""
