"""What the rooms may ask of the metadata store, one page for each kind of caller, and the values that cross the
line."""
