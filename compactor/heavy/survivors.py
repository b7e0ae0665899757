"""The records of a slice that are the last of their keys: sorted offsets, as one object of the store.

The job that groups the keys writes the object. The REWRITE unit of the slice reads it and drops every keyed record
whose offset is not in it. An incomplete object, or one of another slice, would lose data. So the object names its plan,
partition and range, counts its offsets and the records from which they were chosen, and ends with CRC-32Cs of its
content and of itself.

    magic 8, version u16, plan fingerprint 16, partition i32, base offset i64, last offset i64
    blocks: count u32, bytes u32, first offset i64, last offset i64, width u8; zstd of count - 1 differences
    an empty block (count 0); offsets u64, records u64, CRC-32C of the offsets u32, CRC-32C of all before u32

All numbers are big-endian except the differences, which are little-endian and `width` bytes each. A block has
`BLOCK_OFFSETS` offsets, about a byte each; the last block may have fewer. A reader holds the stored object and one
unpacked block in memory.

Several tries may write one object. The first one stands, and the others must have the same offsets.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import zstandard
from numpy.typing import NDArray

from runtime.errors import BugError, SiltstoneError
from storage.objects import ObjectExistsError, ObjectStore
from wire.crc import crc32c

MAGIC = b"SILTSURV"
VERSION = 1
BLOCK_OFFSETS = 1 << 16
_HEAD = struct.Struct(">8sH16siqq")
_BLOCK = struct.Struct(">IIqqB")
_TAIL = struct.Struct(">QQII")
_CRC = struct.Struct(">I")
_WIDTHS = (1, 2, 4, 8)

Offsets = NDArray[np.int64]


class SurvivorsError(SiltstoneError):
    """The object is damaged, or holds the survivors of another plan or slice. No record may be dropped by it."""


class SliceId(NamedTuple):
    """Names a slice of a partition in a plan."""

    plan: str
    """The plan's fingerprint in hex."""
    partition_id: int
    base_offset: int
    last_offset: int


class SurvivorsWriter:
    """Takes the offsets of one slice in rising order; `finish` returns the object."""

    def __init__(self, slice_id: SliceId) -> None:
        self._parts = [_head(slice_id)]
        self._range = (slice_id.base_offset, slice_id.last_offset)
        self._waiting: list[Offsets] = []
        self._waiting_count = 0
        self._last = slice_id.base_offset - 1
        self._records = 0
        self._count = 0
        self._content_crc32c = 0
        self._compressor = zstandard.ZstdCompressor(level=3)

    def add(self, offsets: Offsets, records: int) -> None:
        """`records`: the number of records from which the offsets were chosen. Raises SurvivorsError for offsets that
        do not rise or lie outside the slice."""
        self._records += records
        if not len(offsets):
            return
        if int(offsets[0]) <= self._last or int(offsets[-1]) > self._range[1] or bool((np.diff(offsets) < 1).any()):
            raise SurvivorsError(
                f"survivors from {offsets[0]} to {offsets[-1]} after {self._last} do not rise within the slice from"
                f" {self._range[0]} to {self._range[1]}"
            )
        self._last = int(offsets[-1])
        self._waiting.append(offsets)
        self._waiting_count += len(offsets)
        if self._waiting_count >= BLOCK_OFFSETS:
            joined = np.concatenate(self._waiting)
            whole = len(joined) // BLOCK_OFFSETS * BLOCK_OFFSETS
            for start in range(0, whole, BLOCK_OFFSETS):
                self._write_block(joined[start : start + BLOCK_OFFSETS])
            # A copy, so that a few offsets do not keep the whole joined array in memory.
            self._waiting, self._waiting_count = [joined[whole:].copy()], len(joined) - whole

    def finish(self) -> bytes:
        if self._waiting_count:
            self._write_block(np.concatenate(self._waiting))
        self._parts.append(_BLOCK.pack(0, 0, 0, 0, 1))
        self._parts.append(_TAIL.pack(self._count, self._records, self._content_crc32c, 0)[: -_CRC.size])
        body = b"".join(self._parts)
        return body + _CRC.pack(crc32c(body))

    def _write_block(self, offsets: Offsets) -> None:
        differences = np.diff(offsets)
        largest = int(differences.max()) if len(differences) else 0
        width = next(each for each in _WIDTHS if largest < 1 << 8 * each)
        packed = self._compressor.compress(differences.astype(f"<u{width}").tobytes())
        self._parts.append(_BLOCK.pack(len(offsets), len(packed), int(offsets[0]), int(offsets[-1]), width))
        self._parts.append(packed)
        self._count += len(offsets)
        self._content_crc32c = crc32c(offsets.astype("<i8").tobytes(), self._content_crc32c)


class Survivors:
    """A stored object of `SurvivorsWriter`, checked."""

    def __init__(self, data: bytes, slice_id: SliceId) -> None:
        """Raises SurvivorsError."""
        self._data = data
        what = f"survivors of partition {slice_id.partition_id} from {slice_id.base_offset} to {slice_id.last_offset}"
        if len(data) < _HEAD.size + _BLOCK.size + _TAIL.size or data[: len(MAGIC)] != MAGIC:
            raise SurvivorsError(f"{len(data)} bytes are not the {what}")
        _, version, *_ = _HEAD.unpack_from(data)
        if version != VERSION:
            raise SurvivorsError(
                f"the {what} are of version {version}; this release reads {VERSION}",
                remedy="run the same release of Siltstone on the compactor and on the cluster",
            )
        self.count, self.records, self._content_crc32c, crc = _TAIL.unpack_from(data, len(data) - _TAIL.size)
        """The number of offsets, and of the records from which they were chosen."""
        if crc32c(memoryview(data)[: -_CRC.size]) != crc:
            raise SurvivorsError(f"the CRC-32C of the {what} does not match their bytes")
        if data[: _HEAD.size] != _head(slice_id):
            raise SurvivorsError(f"an object in the place of the {what} is of another plan or slice")
        self._range = (slice_id.base_offset, slice_id.last_offset)
        self._what = what

    def blocks(self) -> Iterator[Offsets]:
        """All offsets, rising. Raises SurvivorsError."""
        at, count, crc, last = _HEAD.size, 0, 0, self._range[0] - 1
        end = len(self._data) - _TAIL.size
        decompressor = zstandard.ZstdDecompressor()
        while True:
            if at + _BLOCK.size > end:
                raise self._refuse("are cut off")
            block_count, packed_bytes, first, block_last, width = _BLOCK.unpack_from(self._data, at)
            at += _BLOCK.size
            if not block_count:
                break
            if block_count > BLOCK_OFFSETS or width not in _WIDTHS or at + packed_bytes > end:
                raise self._refuse("have a block with an impossible head")
            offsets = np.empty(block_count, dtype=np.int64)
            offsets[0] = first
            if block_count > 1:
                offsets[1:] = self._differences(decompressor, at, packed_bytes, block_count - 1, width)
                np.cumsum(offsets, out=offsets)
            if first <= last or int(offsets[-1]) != block_last or block_last > self._range[1]:
                raise self._refuse("do not rise within their slice")
            at, last, count = at + packed_bytes, block_last, count + block_count
            crc = crc32c(offsets.astype("<i8").tobytes(), crc)
            yield offsets
        if (at, count, crc) != (end, self.count, self._content_crc32c):
            raise self._refuse("are not as many as their end counts, or have another CRC-32C")

    def same_content(self, other: Survivors) -> bool:
        """Whether two objects of the same plan and slice hold the same offsets."""
        ours, theirs = ((one.count, one.records, one._content_crc32c) for one in (self, other))
        return ours == theirs

    def _differences(
        self, decompressor: zstandard.ZstdDecompressor, at: int, packed_bytes: int, count: int, width: int
    ) -> NDArray[np.uint64]:
        packed = self._data[at : at + packed_bytes]
        try:
            # Checked before decompressing: a damaged block must not claim memory without a bound.
            if zstandard.get_frame_parameters(packed).content_size != count * width:
                raise self._refuse("have a block of another size than its head gives")
            plain = decompressor.decompress(packed)
        except zstandard.ZstdError as error:
            raise self._refuse("have a block that cannot be decompressed") from error
        differences = np.frombuffer(plain, dtype=f"<u{width}").astype(np.uint64)
        # A difference of 0 is the same offset twice; unsigned differences cannot be negative.
        if not bool(differences.all()):
            raise self._refuse("name an offset twice")
        return differences

    def _refuse(self, why: str) -> SurvivorsError:
        return SurvivorsError(f"the {self._what} {why}")


def _head(slice_id: SliceId) -> bytes:
    return _HEAD.pack(MAGIC, VERSION, bytes.fromhex(slice_id.plan), *slice_id[1:])


class SurvivorLookup:
    """Tells which offsets survive, for offsets in rising order."""

    def __init__(self, survivors: Survivors) -> None:
        self.found = 0
        """The number of survivors among all offsets so far."""
        self._blocks = survivors.blocks()
        self._block: Offsets = np.zeros(0, dtype=np.int64)
        self._asked = -1

    def among(self, offsets: Offsets) -> NDArray[np.bool_]:
        """Whether each of `offsets` survives. They must rise, also from call to call. Raises SurvivorsError."""
        alive = np.zeros(len(offsets), dtype=np.bool_)
        if not len(offsets):
            return alive
        if int(offsets[0]) <= self._asked:
            raise BugError(f"survivors were looked up at offset {offsets[0]} after {self._asked}")
        self._asked = int(offsets[-1])
        start = 0
        while start < len(offsets):
            if not len(self._block) or int(self._block[-1]) < int(offsets[start]):
                block = next(self._blocks, None)
                if block is None:
                    break
                self._block = block
                continue
            stop = int(np.searchsorted(offsets, int(self._block[-1]), side="right"))
            part = offsets[start:stop]
            at = self._block.searchsorted(part)
            alive[start:stop] = self._block[at] == part
            start = stop
            if start < len(offsets):
                self._block = self._block[:0]
        self.found += int(alive.sum())
        return alive

    def end(self) -> None:
        """Reads the rest. Raises SurvivorsError for damage above the last offset that was looked up."""
        for _ in self._blocks:
            pass


async def put_survivors(store: ObjectStore, key: str, data: bytes, slice_id: SliceId) -> Survivors:
    """Writes the object, unless another try has. Raises SurvivorsError if the other try found other survivors."""
    ours = Survivors(data, slice_id)
    try:
        await store.put_if_absent(key, data, crc32c=crc32c(data))
        return ours
    except ObjectExistsError:
        theirs = Survivors(await store.get(key), slice_id)
    if not ours.same_content(theirs):
        raise SurvivorsError(f"{key!r} says that {theirs.count} records survive, another try {ours.count}")
    return theirs
