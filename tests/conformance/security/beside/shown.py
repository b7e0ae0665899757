"""The contents of an answer, without those that may differ between two servers: a value for each path into the answer.

Kept are error codes, names and ids, partitions, operation masks, ACLs, and which elements are there. Of other numbers
the sign is kept (-1 stands for "you are not told"), of other texts and bytes whether there are any. An id reads as
the topic's name. Elements are found by what names them, so their order does not matter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeAlias, cast
from uuid import UUID

Shown: TypeAlias = Mapping[str, object]
IGNORED = {"throttle_time_ms", "error_message", "current_leader", "diverging_epoch", "snapshot_id"}
"""Texts, and hints that only clients of a leader need."""
COLLAPSED = {"brokers", "node_endpoints", "api_keys", "configs", "members", "record_errors", "synonyms"}
"""Lists whose elements differ by right: it counts whether there are any."""
IDENTIFIES = {
    "name", "topic", "topic_name", "topic_id", "group_id", "resource_name", "key", "user", "transactional_id",
    "feature", "partition_index", "index", "partition", "partition_id", "resource_type", "pattern_type", "principal",
    "host", "operation", "permission_type", "mechanism", "member_id", "entity_type", "entity_name",
}  # fmt: skip
OF_A_SERVER = {"Coordinator", "FindCoordinatorResponse"}
"""Here `host` is an address, and no part of an ACL."""
EXACT = {"topic_authorized_operations", "cluster_authorized_operations", "authorized_operations", "iterations"}


def shown(answer: object, ids: Mapping[str, UUID], node_id: int) -> Shown:
    found: dict[str, object] = {}
    names = {topic_id: name for name, topic_id in ids.items()} | {UUID(int=0): "none"}
    _walk(answer, "", found, names, str(node_id))
    return found


def _walk(part: object, path: str, found: dict[str, object], names: Mapping[UUID, str], node: str) -> None:
    if not is_dataclass(part):
        return
    identified = _identified(part) if path else ()
    for each in fields(part):
        name = each.name
        value: Any = getattr(part, name)
        if name in IGNORED or name in identified:
            continue
        if isinstance(value, list) and name not in COLLAPSED:
            elements = [element for element in cast("list[object]", value) if is_dataclass(element)]
            for element in elements:
                # Elements of one name are one: a server may tell of a topic's partitions in several places.
                step = f"{path}.{name}[{_identity(element, names, node)}]"
                found[step] = "there"
                _walk(element, step, found, names, node)
            if elements or not value:
                continue  # the elements say it
        _put(found, f"{path}.{name}", _leaf(name, value, names))


def _put(found: dict[str, object], path: str, value: object) -> None:
    while found.setdefault(path, value) != value:
        path += "'"


def _identified(part: object) -> Sequence[str]:
    """The fields that name it. An id does if nothing else does."""
    used = [
        each.name
        for each in fields(part)  # pyright: ignore[reportArgumentType] - the caller has looked
        if each.name in IDENTIFIES and not (each.name == "host" and type(part).__name__ in OF_A_SERVER)
    ]
    if "topic_id" in used and (getattr(part, "name", "") or getattr(part, "topic", "")):
        used.remove("topic_id")
    return used


def _identity(element: object, names: Mapping[UUID, str], node: str) -> str:
    words: list[str] = []
    for each in _identified(element):
        value: Any = getattr(element, each)
        if isinstance(value, UUID):
            value = f"id of {names.get(value, '?')}"
        words.append("NODE" if value == node else str(value))
    return " ".join(words)


def _leaf(name: str, value: Any, names: Mapping[UUID, str]) -> object:
    if name.endswith("error_code") or name in EXACT:
        return value
    if isinstance(value, UUID):
        return f"id of {names.get(value, '?')}"
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, (int, float)):
        return value if value < 0 else "a number"
    return "some" if len(value) else "none"
