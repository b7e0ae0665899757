"""The front door: commands, processes, embedded stack, Kafka client and `read_topic`. Imports nothing eagerly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from siltstone.api import read_topic as read_topic

__all__ = ["read_topic"]


def __getattr__(name: str) -> Any:
    if name == "read_topic":
        from siltstone.api import read_topic  # loads pyarrow and the kernels

        return read_topic
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
