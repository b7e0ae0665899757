"""Patterns of EventBridge: whether one takes an event."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, cast

OR: Final = "$or"
# A filter in a pattern -> whether it takes any of the values that a field has. What is not here takes none.
FILTERS: Final[Mapping[str, Callable[[Any, list[object]], bool]]] = {
    "prefix": lambda wanted, values: any(str(each).startswith(str(wanted)) for each in values),
    "exists": lambda wanted, values: bool(values) is wanted,
    "anything-but": lambda wanted, values: any(is_another(each, wanted) for each in values),
}


def is_another(value: object, wanted: object) -> bool:
    if isinstance(wanted, dict):
        return not accepts(cast("dict[str, Any]", wanted), [value])
    return value not in (cast("list[object]", wanted) if isinstance(wanted, list) else [wanted])


def accepts(wanted: object, values: list[object]) -> bool:
    if not isinstance(wanted, dict):
        return wanted in values
    [(name, argument)] = cast("dict[str, Any]", wanted).items()
    return name in FILTERS and FILTERS[name](argument, values)


def takes(pattern: Mapping[str, Any], event: Mapping[str, Any]) -> bool:
    """Whether the pattern takes the event. A pattern of no fields takes all."""
    return all(
        any(takes(each, event) for each in wanted) if name == OR else takes_field(wanted, event.get(name))
        for name, wanted in pattern.items()
    )


def takes_field(wanted: object, value: object) -> bool:
    several = cast("list[object]", value) if isinstance(value, list) else [] if value is None else [value]
    if isinstance(wanted, dict):
        inside = [cast("dict[str, Any]", each) for each in several if isinstance(each, dict)] or [{}]
        return any(takes(cast("dict[str, Any]", wanted), each) for each in inside)
    return any(accepts(each, several) for each in cast("list[object]", wanted))
