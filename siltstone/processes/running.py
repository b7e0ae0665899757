"""The addresses of a started agent or compactor, as it reports them to the process that started it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningAgent:
    bootstrap: str
    """HOST:PORT that the agent advertises to clients."""
    metrics_url: str
    """Empty when `metrics.listen` is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningCompactor:
    node_id: int
    metrics_url: str
    """Empty when `metrics.listen` is."""
