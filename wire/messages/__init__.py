"""The messages of each API, one module per API, declared as tables (`wire.schema`)."""
