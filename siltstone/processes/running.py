"""What a started agent or compactor says about itself, to whoever started it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningAgent:
    bootstrap: str
    """HOST:PORT as clients are told it."""
    metrics_url: str
    """Empty when `metrics.listen` is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningCompactor:
    node_id: int
    metrics_url: str
    """Empty when `metrics.listen` is."""
