"""The arguments of `siltstone.read_topic` and `siltstone.topic_dataset`, as the options of a scan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from numbers import Integral
from typing import Any, cast

from spark_jobs.scan.contract import EARLIEST, LATEST, AtTimestamp, BadScanError, Edge, OffsetSpec

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Where = str | datetime | Edge | AtTimestamp | Mapping[int, int]


def partitions_of(asked: object) -> tuple[int, ...] | None:
    """The partition numbers; None for all."""
    if asked is None:
        return None
    found = () if isinstance(asked, str | bytes) or not isinstance(asked, Iterable) else tuple(cast("Any", asked))
    if not found or not all(_is_number(each) for each in found):
        raise BadScanError(
            f"partitions={asked!r} names no partitions", remedy="give numbers in a list, such as [0] or [0, 2]"
        )
    return tuple(map(int, found))


def _is_number(value: object) -> bool:
    """Whether `value` is a whole number, also one of numpy. True and False are not."""
    return isinstance(value, Integral) and value is not True and value is not False


def columns_of(asked: object) -> tuple[str, ...]:
    found = () if isinstance(asked, str | bytes) or not isinstance(asked, Iterable) else tuple(cast("Any", asked))
    if not all(isinstance(each, str) for each in found) or (not found and asked not in ((), [])):
        raise BadScanError(
            f"columns={asked!r} names no columns", remedy='give names in a list, such as ["key", "value"]'
        )
    return found


def where_of(asked: Where) -> OffsetSpec:
    match asked:
        case Edge() | AtTimestamp():
            return asked
        case "earliest":
            return EARLIEST
        case "latest":
            return LATEST
        case datetime():
            zoned = asked if asked.tzinfo else asked.replace(tzinfo=UTC)
            return AtTimestamp(-((_EPOCH - zoned) // timedelta(milliseconds=1)))  # rounded up
        case Mapping():
            return dict(asked)
        case _:
            raise BadScanError(
                f"{asked!r} is not a place in a topic",
                remedy='give "earliest", "latest", a datetime, or offsets by partition such as {0: 100}',
            )
