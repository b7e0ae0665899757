"""The run of one merge: inputs in windows, a k-way merge, outputs cut into extents and files."""
