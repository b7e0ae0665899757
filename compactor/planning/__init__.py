"""The choice of merges that are due: pure functions over a view of all files."""
