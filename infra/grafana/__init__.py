"""The Grafana dashboard, from a source that can be read: `python -m infra.grafana` writes `siltstone.json`."""
