"""The contracts of the metadata store: one module for each kind of caller, with the values it passes and receives."""
