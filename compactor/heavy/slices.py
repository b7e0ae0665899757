"""What is known of a partition that is deduped in slices, once all of its keys were read: values, JSON. Pure.

A slice is judged by what lies in all of them: which offsets survive, up to where tombstones may be judged, and which
producers have data before the slice whose marker may lie in it. Each KEYS unit says what its slice holds (`KeysFound`,
the details of its manifest); `join_slices` puts these and the counts of survivors together, and refuses what does not
add up: a record that was not counted among the survivors' would be dropped by mistake.

- Flagged extents and unreadable batches may hold an older or newer value of any key: tombstones from the first of them
  in the *partition* on stay as they are, whichever slice it lies in.
- Which batches are unreadable was settled by the KEYS units. A REWRITE unit must not find out for itself: a batch that
  it could read, and whose keys nobody entered, would lose all its records.
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
_ANEW = "the job is planned anew when its time is over"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeysFound:
    """One slice, as its KEYS unit has read it."""

    batches: int
    """In extents that are not flagged; they are numbered from 0."""
    rows: int
    """Records of these batches, control records too; none of batches that are unreadable."""
    records: int
    """Of those: of data batches, below the first uncleanable offset."""
    dead_at_once: int
    """Of those: keyless, or of aborted transactions."""
    flagged: tuple[tuple[int, str], ...] = ()
    """(base offset, reason) of extents found corrupt in the scan, or before."""
    unreadable: tuple[tuple[int, int], ...] = ()
    """Batches that cannot be read, by number: first and stop (exclusive) of each stretch."""
    unreadable_first_offset: int | None = None
    unreadable_reason: str = ""
    opened: tuple[int, ...] = ()
    """Producers whose last transactional batch in the slice is data."""
    closed: tuple[int, ...] = ()
    """Producers whose last one is a marker."""

    @property
    def entered(self) -> int:
        """Records that a key was emitted for."""
        return self.records - self.dead_at_once

    def unreadable_batches(self) -> UnreadableBatches:
        """As the cleaner knows them."""
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
            raise ManifestMismatchError(f"what a KEYS unit found cannot be read: {error!r}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceFacts:
    """One slice, as its REWRITE unit must know it."""

    base_offset: int
    last_offset: int
    found: KeysFound
    survivors: int
    """Records that may stay of those that were entered: of each key its last one in the partition."""
    open_before: tuple[int, ...]
    """Producers with data before the slice, since their last marker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionKeys:
    """One partition, all its slices."""

    plan: str
    """Fingerprint."""
    partition_id: int
    whole_through_offset: int
    """As `PartitionSpec` has it, and as the inputs of the plan bear out."""
    judged_through_offset: int
    """The same, and below all that is flagged or unreadable: up to here tombstones and markers may be judged."""
    slices: tuple[SliceFacts, ...]
    """By offset."""

    @property
    def keys(self) -> int:
        """Distinct ones."""
        return sum(each.survivors for each in self.slices)

    def slice_of(self, base_offset: int, last_offset: int) -> SliceFacts:
        """Raises ManifestMismatchError for a slice that is none of them."""
        for each in self.slices:
            if (each.base_offset, each.last_offset) == (base_offset, last_offset):
                return each
        raise ManifestMismatchError(
            f"nothing is known of the slice from {base_offset} to {last_offset} of partition {self.partition_id}"
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
    """Raises ManifestMismatchError for what is not what `PartitionKeys.encode` wrote for this plan and partition."""
    try:
        loaded = load_json(decompress(stored, KEYS_BYTES_MAX))
        fields = cast("dict[str, Any]", loaded) if isinstance(loaded, dict) else {}
        if fields.get("version") != KEYS_VERSION:
            raise ManifestMismatchError(
                f"keys of version {fields.get('version')!r}, this release knows {KEYS_VERSION}",
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
            f"keys of partition {keys.partition_id} and plan {keys.plan}, wanted are those of partition"
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
        raise PlanError(f"the plan of job {plan.job_id} does not cut partition {partition_id} into slices, each once")
    return list(zip(reading, writing, strict=True))


def slice_range(plan: HeavyPlan, unit: Unit) -> tuple[int, int]:
    """First and last offset that the unit's extents answer for."""
    return plan.extents[unit.first].base_offset, plan.extents[unit.end - 1].last_offset


def join_slices(
    plan: HeavyPlan, partition_id: int, found: Sequence[KeysFound], survivors: Sequence[tuple[int, int]]
) -> PartitionKeys:
    """`found` and `survivors`, (offsets, records that they stand for), of each slice, in order.

    Raises ManifestMismatchError when these are not as many records as were entered.
    """
    entered, stood_for = sum(each.entered for each in found), sum(records for _, records in survivors)
    if entered != stood_for:
        raise ManifestMismatchError(
            f"partition {partition_id} has {entered} records with keys, its survivors were chosen from {stood_for}",
            remedy=_ANEW,
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
        open_producers = open_producers - set(each.closed) | set(each.opened)
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
    if type(value) is not int:
        raise TypeError(f"{value!r} is not a whole number")
    return value


def _count(value: Any) -> int:
    if _int(value) < 0:
        raise ValueError(f"{value} is no count")
    return value
