"""One compacted partition in one merge, cleaned over compiled kernels by the rules of `compactor/cleaning/oracle.py`.

Windows of whole batches come in offset order, all of them for each pass. The scan enters keys into the dedupe buffer
and marks superseded records in a bitmap, one bit each. Only the bitmap and the buffer grow with a partition. The
rewrite judges every record by the bitmap and the bounds and returns the batches that stay.

A deep cleaning (`passes` above 1) enters one part of the hashes per scan (equal stretches of the last hash word). If a
part overflows the buffer all the same, it is split in two and each half gets its own scan; marks from the first try are
right and stay. The buffer is never cleared within a part, so one record per key is left, in bounded memory.

A batch with a right CRC-32C whose records cannot be read is left as it is (`compactor/cleaning/unreadable.py`); every
pass skips it.

The cleaner writes nothing, so a crash loses only its work. A cleaner cannot be used after an error: the merge starts
another one that copies the corrupt extents as they are.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compactor.cleaning.bounds import CleanBounds, CleanedStats, ScanResult
from compactor.cleaning.dedupe_buffer import DedupeBuffer
from compactor.cleaning.kernels import ABORTED, KEPT, OUTLIVED, Limits, judge, pick_rows
from compactor.cleaning.payloads import (
    Chunk,
    CodecAtError,
    CorruptRecordAtError,
    Payloads,
    corrupt_record,
    first_rows_of,
    joined,
)
from compactor.cleaning.rules import AbortedBatches, OpenTransactions, horizons_end_offset
from compactor.cleaning.unreadable import FAILED_READS_MAX, RECORDS_MAX, UnreadableBatches
from runtime.errors import BadInputError, BugError
from wire.batch import BATCH_HEADER_BYTES, CONTROL_BIT, TRANSACTIONAL_BIT
from wire.crc import Body
from wire.kernels.batches import BatchTable, CorruptBatchAtError, check_crcs
from wire.kernels.hashing import hash_keys
from wire.kernels.rewrite import EMPTIED, REMOVED, VERBATIM, rewrite
from wire.kernels.scan import KeyColumns
from wire.records import DECOMPRESSED_BYTES_MAX

MIB = 1 << 20
_HASHES_END = 2**64
_ENTERED_AT_ONCE = 4096
"""Rows hashed and entered together: their hashes stay in the processor's cache."""
_DEAD_BYTES_MIN = 64 * 1024
_OFFSET_MAX = 2**63 - 1


class CleanedWindow(NamedTuple):
    """A window after cleaning."""

    data: Body
    """Whole batches, joined; the window itself when nothing in it changed."""
    table: BatchTable
    """The table of the batches in `data`."""
    tombstones: int
    """Tombstones kept; an unreadable batch counts as one."""


@dataclass(slots=True)
class ScanPass:
    """The progress of one pass over the windows, and its counts."""

    batches: int = 0
    ordinal: int = 0
    """The next record's ordinal, which is its bit in the bitmap."""
    next_offset: int = 0
    records: int = 0
    dead_at_once: int = 0
    overflowed: bool = False
    """This part of the hashes does not fit: the rest of the pass is skipped."""

    def passed(self, table: BatchTable) -> None:
        """Counts all batches of this window as passed."""
        self.batches += len(table.positions)
        if len(table.positions):
            self.next_offset = int(table.last_offsets[-1]) + 1


@dataclass(slots=True)
class _Counted:
    """`CleanedStats`, while it grows."""

    records_in: int = 0
    records_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    tombstones_out: int = 0
    tombstones_dropped: int = 0
    keyless_dropped: int = 0
    batches_verbatim: int = 0
    batches_rebuilt: int = 0
    batches_removed: int = 0
    aborted_left: frozenset[int] = frozenset()


class PartitionCleaner:
    """Call `scan` for every window, then `end_scan`, again while that is True; then `rewrite` for every window."""

    def __init__(
        self,
        buffer: DedupeBuffer | None,
        bounds: CleanBounds,
        *,
        passes: int = 1,
        kept_bytes_max: int = 64 * MIB,
        decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX,
        keep_unreadable: bool = True,
    ) -> None:
        """The cleaner clears the buffer and uses it until the rewrite begins. Raises BadInputError if `passes` < 1.

        `compactor/heavy/` keeps keys in tables of its own and passes no buffer: one subclass takes the keys of a scan
        (`_enter`), another one gets the result of an earlier scan (`_dead_rows`).

        `keep_unreadable` False: no batch counts as unreadable, and records that cannot be read are an error, as in the
        oracle.
        """
        if passes < 1:
            raise BadInputError(f"a scan needs at least 1 pass, not {passes}")
        if buffer is not None:
            buffer.clear()
        self._lent_buffer = buffer
        self._bounds = bounds
        self._decompressed_bytes_max = decompressed_bytes_max
        self._payloads = Payloads(kept_bytes_max=kept_bytes_max, decompressed_bytes_max=decompressed_bytes_max)
        self._aborted = AbortedBatches(bounds.aborted)
        self._is_deep = passes > 1
        self._parts = [
            (part * _HASHES_END // passes, (part + 1) * _HASHES_END // passes - 1) for part in reversed(range(passes))
        ]
        """Stretches of the last hash word (first, last) that are still to be scanned; the present one is at the end."""
        self._dead = np.zeros(_DEAD_BYTES_MIN, dtype=np.uint8)
        self._pass = ScanPass()
        self._keys = 0
        self._clears = 0
        self._first_clear_offset: int | None = None
        self._scanned: ScanResult | None = None
        self._rewriting: ScanPass | None = None
        self._transactions = OpenTransactions()
        self._counted = _Counted()
        self._keep_unreadable = keep_unreadable
        self.unreadable = UnreadableBatches()

    # The scan

    def scan(self, data: Body, table: BatchTable, *, crcs_due: bool = False) -> None:
        """Takes the next window: `table` covers all of `data`. `crcs_due`: no CRC-32C of its batches was checked yet.

        After the buffer overflowed in a deep pass, further windows are ignored; they come again in the next pass.

        Raises CorruptBatchAtError for a wrong CRC or batches out of offset order, and OrdinalOverflowError above 2^32
        records. Raises CorruptRecordAtError and CodecAtError, which name the batch, unless unreadable batches are kept.
        """
        if self._scanned is not None:
            raise BugError("a window came after the scan had ended")
        if self._pass.overflowed:
            return
        _check_order(table, self._pass)
        row, rows, failures = 0, len(table.positions), 0
        while row < rows and not self._pass.overflowed:
            is_unreadable, part = self._stretch(table, row, self._pass)
            if is_unreadable:
                if crcs_due:
                    check_crcs(data, part)
                row += len(part.positions)
                continue
            done = row
            try:
                for chunk in self._payloads.chunks(data, part, self._pass.batches + row, crcs_due=crcs_due):
                    self._scan_chunk(part, chunk)
                    if self._pass.overflowed:
                        return
                    done = row + chunk.stop
            except (CorruptRecordAtError, CodecAtError) as error:
                if not self._keep_unreadable:
                    raise
                # Leave this batch out and read the rest of the window again. After too many failures, leave out the
                # rest of the window, because each costs another read.
                failures += 1
                bad = int(np.searchsorted(table.positions, error.position))
                stop = bad + 1 if failures < FAILED_READS_MAX else rows
                first_batch = self._pass.batches
                self.unreadable.add(first_batch + bad, first_batch + stop, error.base_offset, error.message)
            row = done
        self._pass.passed(table)

    def _scan_chunk(self, table: BatchTable, chunk: Chunk) -> None:
        """Finds unreadable batches before it enters any key of the chunk, so that a failed chunk leaves no trace."""
        first_uncleanable = min(self._bounds.first_uncleanable_offset, _OFFSET_MAX)
        part = chunk.of(table)
        columns, first_rows = chunk.columns(table), first_rows_of(part)
        picked = pick_rows(part, self._modes(part, None), first_rows, columns, first_uncleanable)
        if picked.broken_row >= 0:
            batch = int(np.searchsorted(first_rows, picked.broken_row, side="right")) - 1
            record, delta = picked.broken_row - int(first_rows[batch]), columns.offset_deltas[picked.broken_row]
            message = f"offset delta {delta} is not above the one before it, or above the batch's last"
            raise corrupt_record(table, chunk.first + batch, record, message)
        # Nothing above has changed the cleaner, so a chunk with an unreadable batch is simply read again without it.
        self._pass.records += picked.records
        self._pass.dead_at_once += picked.dead_at_once
        self._enter(chunk.arena, columns, part, first_rows)
        self._pass.ordinal += len(columns.key_lengths)

    def end_scan(self) -> bool:
        """Whether the caller must pass all windows to `scan` once more."""
        if self._scanned is not None:
            raise BugError("the scan ended twice")
        part = self._parts.pop()
        if self._pass.overflowed:
            first, last = part
            if first == last:
                raise BugError(f"the dedupe buffer overflowed at {self._buffer.keys} keys with a single hash")
            middle = first + (last - first) // 2
            # Marks of the failed try stay in the bitmap: each says that a later record has the same key, which is true
            # in any pass.
            self._parts += ((middle + 1, last), (first, middle))
        else:
            self._keys += self._buffer.keys
        if self._parts:
            self._buffer.clear()
            self._pass = ScanPass()
            return True
        self._scanned = ScanResult(
            records=self._pass.records,
            dead_records=self._pass.dead_at_once + int(np.bitwise_count(self._dead).sum()),
            keys=self._keys,
            clears=self._clears,
            first_clear_offset=self._first_clear_offset,
        )
        return False

    @property
    def scanned(self) -> ScanResult:
        """Known once `end_scan` has returned False."""
        if self._scanned is None:
            raise BugError("the scan has not ended")
        return self._scanned

    @property
    def _buffer(self) -> DedupeBuffer:
        if self._lent_buffer is None:
            raise BugError("a cleaner without a dedupe buffer was asked to enter a key")
        return self._lent_buffer

    def _enter(
        self, arena: NDArray[np.uint8], columns: KeyColumns, part: BatchTable, first_rows: NDArray[np.int64]
    ) -> None:
        """Enters the keys of a chunk, in order. Clears the buffer when it is full; a deep pass gives up the part."""
        rows = len(columns.key_lengths)
        self._make_room(self._pass.ordinal + rows)
        range_lo, range_hi = self._parts[-1]
        for start in range(0, rows, _ENTERED_AT_ONCE):
            stop = min(start + _ENTERED_AT_ONCE, rows)
            lengths = columns.key_lengths[start:stop]
            hashes = hash_keys(arena, columns.key_positions[start:stop], lengths)
            while start < stop:
                done = self._buffer.enter(
                    hashes,
                    lengths,
                    self._pass.ordinal + start,
                    self._dead,
                    range_lo=range_lo,
                    range_hi=range_hi,
                )
                start += done
                if start == stop:
                    break
                if self._is_deep:
                    self._pass.overflowed = True
                    return
                # An empty buffer that takes no row would make this loop endless.
                if not done and not self._buffer.keys:
                    raise BugError("the dedupe buffer takes no key")
                if self._first_clear_offset is None:
                    batch = int(np.searchsorted(first_rows, start, side="right")) - 1
                    self._first_clear_offset = int(part.base_offsets[batch]) + int(columns.offset_deltas[start])
                self._keys += self._buffer.keys
                self._clears += 1
                self._buffer.clear()
                hashes, lengths = hashes[done:], lengths[done:]

    def _make_room(self, records: int) -> None:
        needed = (records + 7) // 8
        if needed > len(self._dead):
            # Grows by half, so that a long partition does not copy its bitmap for every chunk.
            grown = np.zeros(max(needed, len(self._dead) * 3 // 2), dtype=np.uint8)
            grown[: len(self._dead)] = self._dead
            self._dead = grown

    # The rewrite

    def rewrite(self, data: Body, table: BatchTable, *, crcs_due: bool = False) -> CleanedWindow:
        """Takes the next window of the same batches; windows may end elsewhere now. Raises as `scan` does."""
        if self._rewriting is None:
            self._rewriting = ScanPass()
        limits = self._limits()
        done, tombstones, verbatim_before = self._rewriting, 0, self._counted.batches_verbatim
        parts: list[CleanedWindow] = []
        _check_order(table, done)
        row = 0
        while row < len(table.positions):
            is_unreadable, part = self._stretch(table, row, done)
            if is_unreadable:
                parts.append(self._unread(data, part, crcs_due))
                tombstones += parts[-1].tombstones
            else:
                first_batch = done.batches + row
                for chunk in self._payloads.chunks(data, part, first_batch, crcs_due=crcs_due, last_pass=True):
                    cleaned = self._rewrite_chunk(data, part, chunk, done.ordinal, limits)
                    done.ordinal += int(part.record_counts[chunk.first : chunk.stop].sum())
                    tombstones += cleaned.tombstones
                    parts.append(cleaned)
            row += len(part.positions)
        done.passed(table)
        # Every batch is unchanged: return the window itself, and spare a copy of its bytes.
        if self._counted.batches_verbatim - verbatim_before == len(table.positions):
            return CleanedWindow(data, table._replace(uncompressed_sizes=_true_sizes(parts)), tombstones)
        return _joined(parts, tombstones)

    @property
    def stats(self) -> CleanedStats:
        """The counts of the windows rewritten so far."""
        return CleanedStats(**asdict(self._counted))

    def _limits(self) -> Limits:
        bounds = self._bounds
        horizons_end = horizons_end_offset(bounds, self.scanned.first_clear_offset)
        if self.unreadable.first_offset is not None:
            horizons_end = min(horizons_end, self.unreadable.first_offset)
        return Limits(
            min(bounds.first_uncleanable_offset, _OFFSET_MAX),
            min(horizons_end, _OFFSET_MAX),
            bounds.now_ms,
            bounds.delete_horizon_ms,
            bounds.high_watermark,
            bounds.last_stable_offset,
            self._decompressed_bytes_max,
        )

    def _rewrite_chunk(
        self, data: Body, table: BatchTable, chunk: Chunk, first_ordinal: int, limits: Limits
    ) -> CleanedWindow:
        part = chunk.of(table)._replace(uncompressed_sizes=chunk.ends - chunk.starts + BATCH_HEADER_BYTES)
        columns, first_rows = chunk.columns(table), first_rows_of(part)
        if first_ordinal + len(columns.key_lengths) > self._pass.ordinal:
            raise BugError("more records are rewritten than were scanned")
        modes = self._modes(part, self._transactions)
        dead, dead_from = self._dead_rows(part, columns, first_rows, first_ordinal)
        verdicts = judge(chunk.arena, columns, part, modes, first_rows, dead, dead_from, limits)
        actions = verdicts.rewrites.actions
        if (actions == VERBATIM).all():
            start, end = int(part.positions[0]), int(part.positions[-1] + part.sizes[-1])
            out: Body = memoryview(data)[start:end]
            out_table = part._replace(positions=part.positions - start)
        else:
            window = np.frombuffer(data, dtype=np.uint8)
            written, out_table = rewrite(
                window, part, chunk.arena, columns, first_rows, verdicts.keep, verdicts.rewrites
            )
            out = written.data
        counted = self._counted
        counted.records_in += len(columns.key_lengths)
        counted.records_out += int(out_table.record_counts.sum())
        counted.bytes_in += int(part.sizes.sum())
        counted.bytes_out += len(out)
        counted.tombstones_out += verdicts.tombstones
        counted.tombstones_dropped += verdicts.tombstones_dropped
        counted.keyless_dropped += verdicts.keyless_dropped
        counted.batches_verbatim += int((actions == VERBATIM).sum())
        counted.batches_rebuilt += int((actions >= EMPTIED).sum())
        counted.batches_removed += int((actions == REMOVED).sum())
        self._note_aborted(out_table)
        return CleanedWindow(out, out_table, verdicts.tombstones)

    def _dead_rows(
        self, part: BatchTable, columns: KeyColumns, first_rows: NDArray[np.int64], first_ordinal: int
    ) -> tuple[NDArray[np.uint8], int]:
        """A bitmap of superseded records, and the bit of the chunk's first record."""
        return self._dead, first_ordinal

    def _unread(self, data: Body, part: BatchTable, crcs_due: bool) -> CleanedWindow:
        """Copies unreadable batches."""
        if crcs_due:
            check_crcs(data, part)
        self._modes(part, self._transactions)  # their headers still name their transactions
        start, end = int(part.positions[0]), int(part.positions[-1] + part.sizes[-1])
        counted, records = self._counted, int(part.record_counts.sum())
        counted.records_in += records
        counted.records_out += records
        counted.bytes_in += end - start
        counted.bytes_out += end - start
        counted.batches_verbatim += len(part.positions)
        self._note_aborted(part)
        table = part._replace(positions=part.positions - start)
        return CleanedWindow(memoryview(data)[start:end], table, len(part.positions))

    def _note_aborted(self, left: BatchTable) -> None:
        """Notes of which aborted transactions these batches, which stay, hold records."""
        if not self._aborted:
            return
        is_data = (left.attributes & (TRANSACTIONAL_BIT | CONTROL_BIT)) == TRANSACTIONAL_BIT
        rows = (is_data & (left.record_counts > 0)).nonzero()[0]
        places = zip(left.producer_ids[rows].tolist(), left.base_offsets[rows].tolist(), strict=True)
        markers = {self._aborted.marker_of(producer_id, base_offset) for producer_id, base_offset in places}
        self._counted.aborted_left |= {each for each in markers if each is not None}

    # Both

    def _stretch(self, table: BatchTable, row: int, done: ScanPass) -> tuple[bool, BatchTable]:
        """The next rows of a window: either all unreadable, or none known to be."""
        is_unreadable, stop = self.unreadable.stretch(done.batches + row)
        stop = min(stop - done.batches, len(table.positions))
        if not is_unreadable and self._keep_unreadable:
            large = (table.record_counts[row:stop] > RECORDS_MAX).nonzero()[0]
            if len(large) and large[0] == 0:
                base_offset, records = int(table.base_offsets[row]), int(table.record_counts[row])
                reason = f"a batch of {records} records (base offset {base_offset}), more than are read at once"
                self.unreadable.add(done.batches + row, done.batches + row + 1, base_offset, reason)
                is_unreadable, stop = True, row + 1
            elif len(large):
                stop = row + int(large[0])
        return is_unreadable, BatchTable._make(column[row:stop] for column in table)

    def _modes(self, part: BatchTable, transactions: OpenTransactions | None) -> NDArray[np.uint8]:
        """The mode of each batch. `transactions` is None in the scan, which enters no control record anyway."""
        modes = np.zeros(len(part.positions), dtype=np.uint8)
        is_control = (part.attributes & CONTROL_BIT) != 0
        modes[is_control] = KEPT
        if transactions is not None or self._aborted:
            for index in (part.attributes & TRANSACTIONAL_BIT).nonzero()[0].tolist():
                producer_id = int(part.producer_ids[index])
                if not is_control[index]:
                    if transactions is not None:
                        transactions.data(producer_id)
                    if self._aborted.holds(producer_id, int(part.base_offsets[index])):
                        modes[index] = ABORTED
                elif (
                    transactions is not None
                    and transactions.marker(producer_id)
                    and not self._aborted.ends_at(producer_id, int(part.base_offsets[index]))
                ):
                    modes[index] = OUTLIVED
        # Last of all, because it overrules the others: nothing above this bound is touched, aborted or not.
        modes[part.base_offsets >= self._bounds.first_uncleanable_offset] = KEPT
        return modes


def _check_order(table: BatchTable, done: ScanPass) -> None:
    """Raises CorruptBatchAtError unless offsets rise within the window and from the window before."""
    if not len(table.positions):
        return
    before = np.concatenate((np.array([done.next_offset - 1], dtype=np.int64), table.last_offsets[:-1]))
    wrong = (table.base_offsets <= before).nonzero()[0]
    if len(wrong):
        base_offset, last_before = int(table.base_offsets[wrong[0]]), int(before[wrong[0]])
        raise CorruptBatchAtError(
            int(table.positions[wrong[0]]), f"base offset {base_offset} does not come after {last_before}"
        )


def _true_sizes(parts: list[CleanedWindow]) -> NDArray[np.int64]:
    """The uncompressed sizes of all batches, as the rewrite found them."""
    return np.concatenate([part.table.uncompressed_sizes for part in parts]) if parts else np.zeros(0, dtype=np.int64)


def _joined(parts: list[CleanedWindow], tombstones: int) -> CleanedWindow:
    if len(parts) == 1:
        return parts[0]
    data, table = joined([(part.data, part.table) for part in parts])
    return CleanedWindow(data, table, tombstones)
