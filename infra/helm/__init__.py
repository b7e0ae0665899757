"""The chart, and its schema of values: `python -m infra.helm` writes the settings into it."""
