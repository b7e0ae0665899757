"""The content of a file: extents, block index, footer. Pure bytes; docs/file-format.md specifies it."""
