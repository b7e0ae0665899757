"""The records of erased keys taken out of batches: the oracle in plain Python, and the same over compiled kernels."""
