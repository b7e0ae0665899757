"""Erasures: durable requests that remove the records of named keys from every object, with a deadline."""
