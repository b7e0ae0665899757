"""Which stamps the extents of a merge carry: both metadata stores ask this inside the commit of the merge. Pure.

A merge states for each output the least stamp of its inputs (an erasure's own merge states a greater one). That alone
would undo the work of an erasure: a merge that joins an erased extent with one that lies above all marks, and has no
stamp, would write an extent that looks pending again. So the commit raises the stamp of an output to that of an open
erasure when no input held bytes that were pending for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class StampedRange(NamedTuple):
    """Offsets of one partition in an input of a merge."""

    base_offset: int
    last_offset: int
    """Inclusive."""
    erased_through: int
    """0 for a row of an L0 file."""


class OpenStamp(NamedTuple):
    """An open erasure of one partition that has a stamp."""

    stamp: int
    end_offset: int
    """Its marks lie below."""


def is_pending(base_offset: int, erased_through: int, end_offset: int, stamp: int | None) -> bool:
    """Whether an extent holds offsets below the marks of an erasure and was not rewritten for it. `stamp` is None while
    the erasure has none: then every extent below its marks is pending."""
    return base_offset < end_offset and (stamp is None or erased_through < stamp)


def raised(output: StampedRange, inputs: Iterable[StampedRange], erasures: Sequence[OpenStamp]) -> int:
    """The `erased_through` to store for `output`. `inputs` and `erasures`: those of its partition.

    It never passes over an erasure that is still pending, because an extent with a stamp counts as rewritten for every
    erasure with a smaller one.
    """
    erased_through = output.erased_through
    overlapping = [
        each for each in inputs if each.base_offset <= output.last_offset and output.base_offset <= each.last_offset
    ]
    for stamp, end_offset in sorted(erasures):
        if not is_pending(output.base_offset, erased_through, end_offset, stamp):
            erased_through = max(erased_through, stamp)
        elif any(is_pending(each.base_offset, each.erased_through, end_offset, stamp) for each in overlapping):
            break
        else:
            erased_through = stamp
    return erased_through
