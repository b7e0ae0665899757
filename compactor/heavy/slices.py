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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

from compactor.cleaning.unreadable import REASON_CHARS_MAX, UnreadableBatches
from compactor.heavy.manifest import ManifestMismatchError
from compactor.heavy.plan.frames import Directory, FramesError, dump_json, encode_frames, load_json
from compactor.heavy.plan.units import HeavyPlan, PlanError, Unit, UnitKind

KEYS_VERSION = 2
"""2: an object of frames, of which a REWRITE unit reads one."""
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
    parts: tuple[tuple[int, int], ...] = ()
    """(base offset, CRC-32C as it was read) of parts of extents, without flagged ones."""

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
            "parts": [list(each) for each in self.parts],
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
                parts=tuple((_int(base), _count(crc)) for base, crc in stored["parts"]),
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
    """A partition, with all of its slices or some. Stored as an object of frames: the head, and one frame a slice."""

    plan: str
    """Fingerprint of the plan."""
    partition_id: int
    whole_through_offset: int
    """As in `PartitionSpec`, or less if inputs of the plan are missing."""
    judged_through_offset: int
    """Tombstones and markers below it may be judged: at most `whole_through_offset`, and below every flagged extent and
    unreadable batch."""
    keys: int
    """The number of distinct keys."""
    slices: Mapping[int, SliceFacts]
    """By number."""

    def slice_of(self, unit: Unit) -> SliceFacts:
        """Raises ManifestMismatchError for a slice that is not among them."""
        facts = self.slices.get(unit.slice_number)
        if facts is None or (facts.base_offset, facts.last_offset) != (unit.base_offset, unit.last_offset):
            raise ManifestMismatchError(
                f"the keys of partition {self.partition_id} do not list slice {unit.slice_number} from"
                f" {unit.base_offset} to {unit.last_offset}"
            )
        return facts

    def encode(self) -> bytes:
        """The stored object; needs all slices."""
        head = {
            "version": KEYS_VERSION,
            "plan": self.plan,
            "partition_id": self.partition_id,
            "whole_through_offset": self.whole_through_offset,
            "judged_through_offset": self.judged_through_offset,
            "keys": self.keys,
        }
        slices = [self.slices[number] for number in range(len(self.slices))]
        rows = (
            [each.base_offset, each.last_offset, each.found.to_json(), each.survivors, list(each.open_before)]
            for each in slices
        )
        return encode_frames(dump_json(head), (dump_json(row) for row in rows))


def decode_keys(
    head: bytes | memoryview,
    frames: Mapping[int, bytes | memoryview],
    directory: Directory,
    *,
    plan: HeavyPlan,
    partition_id: int,
) -> PartitionKeys:
    """From the stored bytes of the head and of some frames.

    Raises ManifestMismatchError unless `PartitionKeys.encode` wrote them for this plan and partition.
    """
    try:
        loaded = load_json(directory.head.body(head))
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
            keys=_count(fields["keys"]),
            slices={
                number: _slice_facts(load_json(directory.frames[number].body(stored)))
                for number, stored in frames.items()
            },
        )
    except FramesError as error:
        raise ManifestMismatchError(f"the keys of a partition cannot be read: {error.message}") from error
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ManifestMismatchError(f"the keys of a partition cannot be read: {error!r}") from error
    if (keys.plan, keys.partition_id) != (plan.fingerprint, partition_id):
        raise ManifestMismatchError(
            f"the keys are of partition {keys.partition_id} and plan {keys.plan}, not of partition"
            f" {partition_id} and plan {plan.fingerprint}"
        )
    return keys


def _slice_facts(stored: Any) -> SliceFacts:
    base, last, found, survivors, open_before = stored
    return SliceFacts(
        base_offset=_int(base),
        last_offset=_int(last),
        found=KeysFound.from_json(found),
        survivors=_count(survivors),
        open_before=tuple(_int(each) for each in open_before),
    )


def slice_units(plan: HeavyPlan, partition_id: int) -> Sequence[tuple[Unit, Unit]]:
    """(KEYS unit, REWRITE unit) of each slice, by offset. Raises PlanError unless both kinds take the same slices."""
    reading = plan.units_of(UnitKind.KEYS, partition_id)
    writing = plan.units_of(UnitKind.REWRITE, partition_id)
    places = [[(unit.stretch, unit.slice_number) for unit in units] for units in (reading, writing)]
    in_order = all(before.last_offset < after.base_offset for before, after in pairwise(reading))
    if places[0] != places[1] or [number for _, number in places[0]] != list(range(len(reading))) or not in_order:
        raise PlanError(
            f"the slices of partition {partition_id} in the plan of job {plan.job_id} do not cover it exactly once"
        )
    return list(zip(reading, writing, strict=True))


def slice_range(unit: Unit) -> tuple[int, int]:
    """The first and last offset that the unit's extents cover."""
    return unit.base_offset, unit.last_offset


def join_slices(
    plan: HeavyPlan, partition_id: int, found: Sequence[KeysFound], survivors: Sequence[tuple[int, int]]
) -> PartitionKeys:
    """Combines the reports of all slices, in order. `survivors`: (offsets, records with keys that were counted).

    Raises ManifestMismatchError when these records are not as many as were entered in the slice.
    """
    whole_through = plan.whole_through[partition_id]
    judged_through = whole_through
    slices: list[SliceFacts] = []
    open_producers: set[int] = set()
    for (unit, _), each, (offsets, records) in zip(slice_units(plan, partition_id), found, survivors, strict=True):
        if records != each.entered:
            raise ManifestMismatchError(
                f"unit {unit.number} of partition {partition_id} has {each.entered} records with keys, but {records}"
                " were counted when its survivors were chosen",
                remedy=_PLANNED_AGAIN,
            )
        if offsets > each.entered:
            raise ManifestMismatchError(f"unit {unit.number} has {offsets} survivors of {each.entered} records")
        slices.append(
            SliceFacts(
                base_offset=unit.base_offset,
                last_offset=unit.last_offset,
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
        keys=sum(each.survivors for each in slices),
        slices=dict(enumerate(slices)),
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
