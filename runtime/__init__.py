"""The ground floor: what every process needs. It imports nothing of ours."""
