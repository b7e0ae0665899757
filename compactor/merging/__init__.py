"""One merge as it runs: inputs in windows, a k-way merge, outputs cut into extents and files."""
