"""Checks whether Spark can run here, and whether the cluster in the settings can be used: `siltstone spark doctor`."""
