"""Topics as tables, read from the object store without an agent: what `siltstone.api` gives."""
