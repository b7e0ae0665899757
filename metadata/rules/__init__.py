"""What both stores decide alike: judges of batches, merges and retention, invariants, codecs. Pure."""
