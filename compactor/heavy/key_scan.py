"""A KEYS unit: reads a slice of a deduped partition and yields the key hash of every record that may be kept.

The scan is that of the embedded engine (`compactor/cleaning/partition_cleaner.py`): it enters the same records and
finds the same batches unreadable. Only the table differs: hashes (256 bits) and offsets do not go into a buffer but to
the caller, which groups them over all slices of the partition.

A row that was yielded cannot be taken back, and a record of a flagged extent must not represent its key: older records
would be dropped in favour of one that cannot be read. So the rows of an extent that takes several windows are held
until its CRC-32C has proved right, in memory up to `HELD_BYTES`, above that in a temporary file. If the extent is
corrupt, its rows are dropped, and the scan goes on after it.

A unit may be tried any number of times. `known` is the result of the first finished try. Later tries skip the extents
and batches that it flagged or could not read, and fail if they find any other difference, so rows always fit the
existing manifest. Nothing is written here.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compactor.cleaning.bounds import CleanBounds
from compactor.cleaning.partition_cleaner import PartitionCleaner, ScanPass
from compactor.cleaning.unreadable import UnreadableBatches
from compactor.heavy.manifest import ManifestMismatchError, UnitResult, parts_read
from compactor.heavy.plan.units import HeavyPlan, Unit, UnitKind
from compactor.heavy.slices import KeysFound, cut_reason
from compactor.merging.cursors import WINDOW_BYTES, Cursors
from compactor.merging.execute import check_formats
from compactor.merging.kway_merge import InputExtent, MergeInputs
from compactor.merging.windows import BatchWindow, Flags, KernelCaller, LateCorruptionError, PartCrcs, windows
from compactor.planning.spec import MIB, PartitionSpec
from runtime.errors import BadInputError
from storage.objects import ObjectStore
from wire.batch import CONTROL_BIT, TRANSACTIONAL_BIT
from wire.kernels.batches import BatchTable
from wire.kernels.hashing import hash_keys
from wire.kernels.scan import KeyColumns

HASH_WORDS = 4
ROW_BYTES = 8 * (HASH_WORDS + 1)
BLOCK_ROWS = 1 << 16
"""The approximate number of rows of a block."""
HELD_BYTES = 64 * MIB
_HASHED_AT_ONCE = 4096
"""Rows hashed together: their hashes stay in the processor's cache."""


class KeyBlock(NamedTuple):
    """Rows in offset order."""

    hashes: NDArray[np.uint64]
    """[n, 4]: SHA-512/256 of the key."""
    offsets: NDArray[np.int64]


class _HeldRows:
    """Rows that are not yielded yet, in order."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=HELD_BYTES)  # noqa: SIM115 -- `close` closes it
        self._counts: list[int] = []

    def add(self, hashes: NDArray[np.uint64], offsets: NDArray[np.int64]) -> None:
        if len(offsets):
            self._file.write(hashes.tobytes())
            self._file.write(offsets.tobytes())
            self._counts.append(len(offsets))

    def drop(self) -> None:
        self._counts.clear()
        self._file.seek(0)
        self._file.truncate()

    def taken(self) -> Iterator[KeyBlock]:
        """All held rows, in blocks. They are dropped afterwards."""
        self._file.seek(0)
        waiting: list[KeyBlock] = []
        rows = 0
        for count in self._counts:
            hashes = np.frombuffer(self._file.read(count * 8 * HASH_WORDS), dtype=np.uint64).reshape(-1, HASH_WORDS)
            waiting.append(KeyBlock(hashes, np.frombuffer(self._file.read(count * 8), dtype=np.int64)))
            rows += count
            if rows >= BLOCK_ROWS:
                yield _joined(waiting)
                waiting, rows = [], 0
        if waiting:
            yield _joined(waiting)
        self.drop()

    def close(self) -> None:
        self._file.close()


def _joined(blocks: Sequence[KeyBlock]) -> KeyBlock:
    if len(blocks) == 1:
        return blocks[0]
    return KeyBlock(*(np.concatenate(columns) for columns in zip(*blocks, strict=True)))


class _State(NamedTuple):
    passed: ScanPass
    unreadable: UnreadableBatches
    last_is_data: dict[int, bool]


class _KeyCollector(PartitionCleaner):
    """The scan of a cleaner that collects keys, and the producers whose transactions are open at the slice's end."""

    def __init__(self, bounds: CleanBounds, held: _HeldRows) -> None:
        # The scan is one pass, so no payload is kept for another.
        super().__init__(None, bounds, kept_bytes_max=0)
        self._held = held
        self.last_is_data: dict[int, bool] = {}
        """Producer -> whether its last transactional batch so far is data (otherwise it is a marker)."""

    def scan_window(self, window: BatchWindow) -> None:
        self.scan(window.data, window.table, crcs_due=window.crcs_due)
        table = window.table
        rows = np.flatnonzero(table.attributes & TRANSACTIONAL_BIT)
        is_control = (table.attributes[rows] & CONTROL_BIT) != 0
        self.last_is_data |= zip(table.producer_ids[rows].tolist(), (~is_control).tolist(), strict=True)

    def _enter(
        self, arena: NDArray[np.uint8], columns: KeyColumns, part: BatchTable, first_rows: NDArray[np.int64]
    ) -> None:
        rows = np.flatnonzero(columns.key_lengths >= 0)
        offsets = np.repeat(part.base_offsets, np.diff(first_rows)) + columns.offset_deltas
        for start in range(0, len(rows), _HASHED_AT_ONCE):
            some = rows[start : start + _HASHED_AT_ONCE]
            self._held.add(hash_keys(arena, columns.key_positions[some], columns.key_lengths[some]), offsets[some])

    def state(self) -> _State:
        """The state before an extent, for `go_back`."""
        return _State(replace(self._pass), copy.deepcopy(self.unreadable), dict(self.last_is_data))

    def go_back(self, state: _State) -> None:
        self._pass, self.unreadable, self.last_is_data = state

    def found(self, flagged: Sequence[tuple[int, str]]) -> KeysFound:
        last = sorted(self.last_is_data.items())
        return KeysFound(
            batches=self._pass.batches,
            rows=self._pass.ordinal,
            records=self._pass.records,
            dead_at_once=self._pass.dead_at_once,
            flagged=tuple(flagged),
            unreadable=tuple(self.unreadable.stretches()),
            unreadable_first_offset=self.unreadable.first_offset,
            unreadable_reason=cut_reason(self.unreadable.first_reason),
            opened=tuple(producer_id for producer_id, is_data in last if is_data),
            closed=tuple(producer_id for producer_id, is_data in last if not is_data),
        )


class KeyScan:
    """One try at a KEYS unit: read all of `blocks`, then `found`."""

    def __init__(
        self,
        store: ObjectStore,
        merge: MergeInputs,
        spec: PartitionSpec,
        *,
        kernels: KernelCaller,
        cursor_bytes: int,
        known: KeysFound | None = None,
    ) -> None:
        """`merge`: the inputs of the unit, all of one partition. `cursor_bytes` bounds read-ahead."""
        self._store = store
        (self._inputs,) = merge.partitions
        self._merge = merge
        self._kernels = kernels
        self._cursor_bytes = cursor_bytes
        self._known = known
        self._bounds = CleanBounds(
            first_uncleanable_offset=spec.first_uncleanable_offset,
            whole_through_offset=spec.whole_through_offset,
            now_ms=0,
            delete_horizon_ms=0,
            high_watermark=spec.high_watermark,
            last_stable_offset=spec.last_stable_offset,
            aborted=spec.aborted,
        )
        self._found: KeysFound | None = None
        self.part_crcs: PartCrcs = {}
        """As they were read, by (partition, base offset); without those of flagged parts once all blocks were read."""
        self.gets = 0
        """Requests to the store; known once all blocks were read."""

    @property
    def found(self) -> KeysFound:
        """Known once all blocks were read."""
        assert self._found is not None
        return self._found

    async def blocks(self) -> AsyncGenerator[KeyBlock]:
        """Every row once, in offset order.

        Raises MergeInputError for inputs that contradict the metadata, ManifestMismatchError when the first finished
        try found something else, and the errors of the store.
        """
        flags: Flags = {
            each.place: each.flagged_reason for each in self._inputs.extents if each.flagged_reason is not None
        }
        before = frozenset(flags)
        partition_id = self._inputs.partition.partition_id
        flags |= {(partition_id, base): reason for base, reason in (self._known.flagged if self._known else ())}
        extents = [each for each in self._inputs.extents if each.place not in flags]
        held = _HeldRows()
        cursors = Cursors(self._store, extents, self._merge.files, budget_bytes=self._cursor_bytes)
        collector = _KeyCollector(self._bounds, held)
        if self._known is not None:
            collector.unreadable = self._known.unreadable_batches()
        try:
            async with aclosing(self._scanned(extents, cursors, flags, collector, held)) as blocks:
                async for block in blocks:
                    yield block
        finally:
            await cursors.close()
            held.close()
            self.gets = cursors.requests
        # After the scan and before its result: bytes of a later format must fail the unit, not be flagged as corrupt.
        await check_formats(self._store, self._merge, flags.keys() - before)
        for place in flags:
            self.part_crcs.pop(place, None)
        self._found = replace(
            collector.found(sorted((base, reason) for (_, base), reason in flags.items())),
            parts=tuple(sorted((base, crc) for (_, base), crc in self.part_crcs.items())),
        )
        if self._known is not None and self._known != self._found:
            raise ManifestMismatchError(
                f"{self._inputs.name} from offset {self._inputs.extents[0].base_offset} was read again and is not as it"
                " was:"
                f" {_difference(self._known, self._found)}"
            )

    async def _scanned(
        self,
        extents: Sequence[InputExtent],
        cursors: Cursors,
        flags: Flags,
        collector: _KeyCollector,
        held: _HeldRows,
    ) -> AsyncGenerator[KeyBlock]:
        """Holds the rows of a large extent until its end, because only then its CRC-32C is checked."""
        for group in _groups(extents):
            before = collector.state()
            is_whole = len(group) > 1 or not _is_streamed(group[0])
            try:
                reading = windows(group, cursors, flags, self._kernels, collector.scan_window, part_crcs=self.part_crcs)
                async with aclosing(reading) as passing:
                    async for _ in passing:
                        if is_whole:  # each of these extents was checked whole before its first row was entered
                            for block in held.taken():
                                yield block
            except LateCorruptionError as error:
                # The numbers of batches and records count sound extents only, so the corrupt one must leave no trace in
                # them.
                collector.go_back(before)
                held.drop()
                flags.setdefault(error.extent.place, error.reason)
            for block in held.taken():
                yield block


def _is_streamed(extent: InputExtent) -> bool:
    """Whether the extent takes several windows (`compactor/merging/windows.py`)."""
    return extent.length > WINDOW_BYTES and not extent.is_l0


def _groups(extents: Sequence[InputExtent]) -> Iterator[Sequence[InputExtent]]:
    """Each large extent alone, and the extents between them together."""
    for streamed, group in groupby(extents, _is_streamed):
        if streamed:
            for extent in group:
                yield [extent]
        else:
            yield list(group)


def _difference(known: KeysFound, found: KeysFound) -> str:
    names = [name for name in KeysFound.__dataclass_fields__ if getattr(known, name) != getattr(found, name)]
    return ", ".join(f"{name} {getattr(known, name)!r} became {getattr(found, name)!r}"[:200] for name in names)


def read_keys(
    store: ObjectStore, plan: HeavyPlan, unit: Unit, known: KeysFound | None, *, in_thread: bool = True
) -> KeyScan:
    """The scan of a KEYS unit. `known`: the result in its manifest, if there is one.

    Raises BadInputError for a unit of another kind.
    """
    if unit.kind is not UnitKind.KEYS or unit.partition_id is None:
        raise BadInputError(f"unit {unit.number} of job {plan.job_id} is a {unit.kind} unit, not a KEYS unit")
    merge = plan.unit_inputs(unit)
    return KeyScan(
        store,
        merge,
        plan.stretch_of(unit).specs[unit.partition_id],
        kernels=KernelCaller(in_thread=in_thread),
        cursor_bytes=plan.memory.cursor_bytes,
        known=known,
    )


def keys_result(plan: HeavyPlan, unit: Unit, scan: KeyScan, seconds: float) -> UnitResult:
    """The manifest of a KEYS unit whose blocks were all read."""
    return UnitResult(
        plan=plan.fingerprint,
        unit=unit.number,
        kind=UnitKind.KEYS,
        covered={},
        outputs=(),
        cleaned=(),
        summary={"gets": scan.gets},
        seconds=seconds,
        parts=parts_read(plan.extents_of(unit), scan.part_crcs),
        details=scan.found.to_json(),
    )
