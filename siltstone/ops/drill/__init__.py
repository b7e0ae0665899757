"""A restore drill: the metadata rebuilt from the bucket of a live cluster, compared with it, and thrown away."""
