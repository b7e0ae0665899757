"""Alterations of configs that depend on what is set: they are decided in the store, under the lock of what they alter.

To append to a list, to replace all that is set, to keep one config within another: each reads before it writes, and of
two that both read first one would be lost or the two come to contradict each other, though both were told all is well.
So the store takes a decision in place of the changes. It locks what is to be altered, hands over what is set by then,
and writes what the decision says. A decision is pure and quick, for others wait; it may be asked more than once, and
what it raises is raised to the caller, with nothing changed. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

Changes: TypeAlias = Mapping[str, str | None]
"""What is set, by name; None removes one. Without any nothing is written, and nobody told."""
TopicDecision: TypeAlias = Callable[[Mapping[str, str], Mapping[str, str]], Changes]
"""(the topic's overrides, the cluster-wide broker configs that are set) -> what changes. The topic is locked; the
cluster-wide ones are as they are now, and may be altered at once by somebody else."""
ClusterDecision: TypeAlias = Callable[[Mapping[str, str]], Changes]
"""(the cluster-wide broker configs that are set) -> what changes."""


def changed(present: Mapping[str, str], changes: Changes) -> dict[str, str]:
    """What is set afterwards."""
    return {name: value for name, value in {**present, **changes}.items() if value is not None}
