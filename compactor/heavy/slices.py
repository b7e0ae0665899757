"""The facts about a partition that is deduped in slices, once all its keys were read: values and JSON. Pure.

The rewrite of a slice depends on all slices of the partition: they decide which offsets survive, up to which offset
tombstones may be judged, and which producers have data before the slice whose marker may lie in it. Each KEYS unit
reports the contents of its slice (`KeysFound`, the details of its manifest). `join_slices` combines these reports with
the counts of survivors, and refuses totals that differ: a record that was not counted would be dropped by mistake.

- Flagged extents and unreadable batches may hold an older or newer value of any key. So tombstones above the first of
  them in the *partition* stay as they are, in every slice.
- The KEYS units decide which batches are unreadable, and REWRITE units must follow. If a REWRITE unit could read a
  batch whose keys were never entered, it would drop all records of that batch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import zstandard

from compactor.cleaning.unreadable import REASON_CHARS_MAX, UnreadableBatches
from compactor.heavy.manifest import ManifestMismatchError
from compactor.heavy.units import HeavyPlan, PlanError, Unit, UnitKind, decompress, load_json

KEYS_VERSION = 1
KEYS_BYTES_MAX = 1 << 30
_PLANNED_AGAIN = "nothing to do: the job is planned again when its time is over"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeysFound:
    """One slice, as its KEYS unit read it."""

    batches: int
    """Batches in extents that are not flagged; they are numbered from 0."""
    rows: int
    """Records of these batches, including control records, without unreadable batches."""
    records: int
    """Those of `rows` in data batches below the first uncleanable offset."""
    dead_at_once: int
    """Those of `records` that have no key or belong to aborted transactions."""
    flagged: tuple[tuple[int, str], ...] = ()
    """(base offset, reason) of extents that were found corrupt in the scan or before."""
    unreadable: tuple[tuple[int, int], ...] = ()
    """Unreadable batches by number: first and stop (exclusive) of each stretch."""
    unreadable_first_offset: int | None = None
    unreadable_reason: str = ""
    opened: tuple[int, ...] = ()
    """Producers whose last transactional batch in the slice is data."""
    closed: tuple[int, ...] = ()
    """Producers whose last transactional batch in the slice is a marker."""

    @property
    def entered(self) -> int:
        """Records whose key was yielded."""
        return self.records - self.dead_at_once

    def unreadable_batches(self) -> UnreadableBatches:
        """In the form that the cleaner takes."""
        batches = UnreadableBatches()
        for first, stop in self.unreadable:
            batches.add(first, stop, self.unreadable_first_offset or 0, self.unreadable_reason)
        return batches

    def to_json(self) -> dict[str, Any]:
        return {
            "batches": self.batches,
            "rows": self.rows,
            "records": self.records,
            "dead_at_once": self.dead_at_once,
            "flagged": [list(each) for each in self.flagged],
            "unreadable": [list(each) for each in self.unreadable],
            "unreadable_first_offset": self.unreadable_first_offset,
            "unreadable_reason": self.unreadable_reason,
            "opened": list(self.opened),
            "closed": list(self.closed),
        }

    @staticmethod
    def from_json(stored: Mapping[str, Any]) -> KeysFound:
        """Raises ManifestMismatchError."""
        try:
            first_offset = stored["unreadable_first_offset"]
            return KeysFound(
                batches=_count(stored["batches"]),
                rows=_count(stored["rows"]),
                records=_count(stored["records"]),
                dead_at_once=_count(stored["dead_at_once"]),
                flagged=tuple((_int(base), str(reason)) for base, reason in stored["flagged"]),
                unreadable=tuple((_count(first), _count(stop)) for first, stop in stored["unreadable"]),
                unreadable_first_offset=_int(first_offset) if stored["unreadable"] else None,
                unreadable_reason=str(stored["unreadable_reason"]),
                opened=tuple(_int(each) for each in stored["opened"]),
                closed=tuple(_int(each) for each in stored["closed"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ManifestMismatchError(f"the details of a KEYS unit's manifest cannot be read: {error!r}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceFacts:
    """The facts about one slice that its REWRITE unit needs."""

    base_offset: int
    last_offset: int
    found: KeysFound
    survivors: int
    """The entered records that may stay: those that are the last of their key in the partition."""
    open_before: tuple[int, ...]
    """Producers with data before the slice and no marker after that data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionKeys:
    """All slices of one partition."""

    plan: str
    """Fingerprint of the plan."""
    partition_id: int
    whole_through_offset: int
    """As in `PartitionSpec`, or less if inputs of the plan are missing."""
    judged_through_offset: int
    """Tombstones and markers below it may be judged: at most `whole_through_offset`, and below every flagged extent and
    unreadable batch."""
    slices: tuple[SliceFacts, ...]
    """By offset."""

    @property
    def keys(self) -> int:
        """The number of distinct keys."""
        return sum(each.survivors for each in self.slices)

    def slice_of(self, base_offset: int, last_offset: int) -> SliceFacts:
        """Raises ManifestMismatchError for a slice that is not among them."""
        for each in self.slices:
            if (each.base_offset, each.last_offset) == (base_offset, last_offset):
                return each
        raise ManifestMismatchError(
            f"the keys of partition {self.partition_id} do not list the slice from {base_offset} to {last_offset}"
        )

    def encode(self) -> bytes:
        fields = {
            "version": KEYS_VERSION,
            "plan": self.plan,
            "partition_id": self.partition_id,
            "whole_through_offset": self.whole_through_offset,
            "judged_through_offset": self.judged_through_offset,
            "slices": [
                [each.base_offset, each.last_offset, each.found.to_json(), each.survivors, list(each.open_before)]
                for each in self.slices
            ],
        }
        return zstandard.ZstdCompressor(level=3).compress(
            json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
        )


def decode_keys(stored: bytes, *, plan: HeavyPlan, partition_id: int) -> PartitionKeys:
    """Raises ManifestMismatchError unless `PartitionKeys.encode` wrote the object for this plan and partition."""
    try:
        loaded = load_json(decompress(stored, KEYS_BYTES_MAX))
        fields = cast("dict[str, Any]", loaded) if isinstance(loaded, dict) else {}
        if fields.get("version") != KEYS_VERSION:
            raise ManifestMismatchError(
                f"the keys have version {fields.get('version')!r}; this release reads {KEYS_VERSION}",
                remedy="run the same release of Siltstone on the compactor and on the cluster",
            )
        keys = PartitionKeys(
            plan=str(fields["plan"]),
            partition_id=_int(fields["partition_id"]),
            whole_through_offset=_int(fields["whole_through_offset"]),
            judged_through_offset=_int(fields["judged_through_offset"]),
            slices=tuple(
                SliceFacts(
                    base_offset=_int(base),
                    last_offset=_int(last),
                    found=KeysFound.from_json(found),
                    survivors=_count(survivors),
                    open_before=tuple(_int(each) for each in open_before),
                )
                for base, last, found, survivors, open_before in fields["slices"]
            ),
        )
    except PlanError as error:
        raise ManifestMismatchError(f"the keys of a partition cannot be read: {error.message}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise ManifestMismatchError(f"the keys of a partition cannot be read: {error!r}") from error
    if (keys.plan, keys.partition_id) != (plan.fingerprint, partition_id):
        raise ManifestMismatchError(
            f"the keys are of partition {keys.partition_id} and plan {keys.plan}, not of partition"
            f" {partition_id} and plan {plan.fingerprint}"
        )
    return keys


def slice_units(plan: HeavyPlan, partition_id: int) -> Sequence[tuple[Unit, Unit]]:
    """(KEYS unit, REWRITE unit) of each slice, by offset. Raises PlanError unless both kinds take the same slices."""
    reading = plan.units_of(UnitKind.KEYS, partition_id)
    writing = plan.units_of(UnitKind.REWRITE, partition_id)
    stretches = [[(unit.first, unit.end) for unit in units] for units in (reading, writing)]
    held = [number for number, extent in enumerate(plan.extents) if extent.partition_id == partition_id]
    taken = [number for first, end in stretches[0] for number in range(first, end)]
    if stretches[0] != stretches[1] or taken != held:
        raise PlanError(
            f"the slices of partition {partition_id} in the plan of job {plan.job_id} do not cover it exactly once"
        )
    return list(zip(reading, writing, strict=True))


def slice_range(plan: HeavyPlan, unit: Unit) -> tuple[int, int]:
    """The first and last offset that the unit's extents cover."""
    return plan.extents[unit.first].base_offset, plan.extents[unit.end - 1].last_offset


def join_slices(
    plan: HeavyPlan, partition_id: int, found: Sequence[KeysFound], survivors: Sequence[tuple[int, int]]
) -> PartitionKeys:
    """Combines the reports of all slices, in order. `survivors`: (offsets, records from which they were chosen).

    Raises ManifestMismatchError when these records are not as many as were entered.
    """
    entered, stood_for = sum(each.entered for each in found), sum(records for _, records in survivors)
    if entered != stood_for:
        raise ManifestMismatchError(
            f"partition {partition_id} has {entered} records with keys, but its survivors were chosen from {stood_for}",
            remedy=_PLANNED_AGAIN,
        )
    whole_through = plan.whole_through(partition_id)
    judged_through = whole_through
    slices: list[SliceFacts] = []
    open_producers: set[int] = set()
    for (unit, _), each, (offsets, _) in zip(slice_units(plan, partition_id), found, survivors, strict=True):
        if offsets > each.entered:
            raise ManifestMismatchError(f"unit {unit.number} has {offsets} survivors of {each.entered} records")
        base_offset, last_offset = slice_range(plan, unit)
        slices.append(
            SliceFacts(
                base_offset=base_offset,
                last_offset=last_offset,
                found=each,
                survivors=offsets,
                open_before=tuple(sorted(open_producers)),
            )
        )
        # A producer that this slice does not name keeps its state from the slices before.
        open_producers = open_producers - set(each.closed) | set(each.opened)
        # Over the whole partition, not up to this slice: slices are rewritten apart, but judge tombstones by one bound.
        judged_through = min([judged_through, *(offset for offset, _ in each.flagged)])
        if each.unreadable_first_offset is not None:
            judged_through = min(judged_through, each.unreadable_first_offset)
    return PartitionKeys(
        plan=plan.fingerprint,
        partition_id=partition_id,
        whole_through_offset=whole_through,
        judged_through_offset=judged_through,
        slices=tuple(slices),
    )


def cut_reason(reason: str) -> str:
    return reason[:REASON_CHARS_MAX]


def _int(value: Any) -> int:
    # `bool` is an `int` for isinstance, but not a number of this format.
    if type(value) is not int:
        raise TypeError(f"{value!r} is not a whole number")
    return value


def _count(value: Any) -> int:
    if _int(value) < 0:
        raise ValueError(f"{value} is no count")
    return value
