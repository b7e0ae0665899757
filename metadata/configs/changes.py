"""Alterations of configs that depend on the present configs: the store decides them under a lock. Pure.

Some alterations read before they write: they append to a list, replace all configs, or keep one config below another.
If two of them read before either wrote, one would be lost, or the configs would contradict each other although both
callers were told of success. So the store also accepts a decision in place of changes. It locks the topic or the
cluster-wide configs, passes the present configs to the decision, and writes the changes that the decision returns.

A decision is pure and quick, because others wait for the lock. The store may call it more than once. If it raises, the
caller gets the error and nothing is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

Changes: TypeAlias = Mapping[str, str | None]
"""New values by name; None removes a config. If empty, nothing is written and no agent is told."""
TopicDecision: TypeAlias = Callable[[Mapping[str, str], Mapping[str, str]], Changes]
"""(the topic's overrides, the cluster-wide broker configs that are set) -> the changes. Only the topic is locked:
another caller may alter the cluster-wide configs at the same time."""
ClusterDecision: TypeAlias = Callable[[Mapping[str, str]], Changes]
"""(the cluster-wide broker configs that are set) -> the changes."""


def changed(present: Mapping[str, str], changes: Changes) -> dict[str, str]:
    """The configs that are set after `changes`."""
    return {name: value for name, value in {**present, **changes}.items() if value is not None}
