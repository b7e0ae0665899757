"""Slices of a scan as places of the shuffle. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from spark_jobs.keys.layout import KeyPlace
from spark_jobs.scan.contract import Slice


def places_of(slices: Sequence[Slice]) -> list[KeyPlace]:
    """The slices as the shuffle wants them."""
    return [
        KeyPlace(number, each.partition_id, each.start, each.end - 1, each.records)
        for number, each in enumerate(slices)
    ]
