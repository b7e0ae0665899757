"""The front door: CLI, settings, embedded stack, and the leaves every room may import. Imports nothing eagerly."""
