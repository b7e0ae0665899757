"""The key index of a data file: which row holds which key, found without reading the file. Pure, but for `read`.

A data file's rows are numbered from 0, its *positions*. The index lists the SHA-512/256 of each row's key with its
position, sorted by hash, in blocks of `BLOCK_ROWS` rows:

    blocks       each: first words [n x u64], other words [n x 3 x u64], positions [n x u32]
    directory    each block's first word and CRC-32C [u64, u32]
    trailer      magic, rows, CRC-32C of the directory and of the trailer's first bytes

All numbers are little-endian. All 256 bits decide whether two keys are the same. The directory tells which blocks can
hold a key, so a few keys are found by reading a few blocks, and many by reading each block once.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from runtime.errors import BugError, SiltstoneError
from spark_jobs.scan.arrow import pa
from wire.crc import crc32c
from wire.kernels.hashing import hash_keys

BLOCK_ROWS = 4096
HASH_WORDS = 4
KEY_COLUMNS = ("kafka_key", "kafka_key_bytes")
"""The columns of a table that hold a record's key; the second may be missing."""
ROW_BYTES = 8 * HASH_WORDS + 4
ROWS_MAX = 2**32 - 1
"""Positions have 32 bits."""
WINDOW_BYTES = 8 << 20
"""The most that is read at once."""
GAP_BLOCKS = 2
"""Blocks that nobody asked for are read too if so few of them lie between two that somebody did."""
_MAGIC = b"SILTKEYS"
_TRAILER = struct.Struct("<8sQII")
_ENTRY = np.dtype([("first", "<u8"), ("crc32c", "<u4")])

Hashes = NDArray[np.uint64]
"""[n, 4]: the words of each hash."""
ReadRange = Callable[[int, int], bytes]
"""(position, length) -> these bytes of the index."""


class KeyIndexError(SiltstoneError):
    """The bytes are no key index, or are damaged. The data file itself still has its keys."""


def encode(hashes: Hashes) -> bytes:
    """The index of a file whose row i has the key `hashes[i]`. Raises BugError."""
    rows = len(hashes)
    if hashes.shape != (rows, HASH_WORDS) or rows > ROWS_MAX:
        raise BugError(f"hashes of shape {hashes.shape} cannot be indexed")
    order = np.argsort(hashes[:, 0], kind="stable")
    parts: list[bytes] = []
    entries = np.zeros(-(-rows // BLOCK_ROWS), dtype=_ENTRY)
    for number, start in enumerate(range(0, rows, BLOCK_ROWS)):
        positions = order[start : start + BLOCK_ROWS]
        held = hashes[positions].astype("<u8", copy=False)
        first = held[:, 0]
        body = first.tobytes() + held[:, 1:].tobytes() + positions.astype("<u4").tobytes()
        entries[number] = (first[0], crc32c(body))
        parts.append(body)
    directory = entries.tobytes()
    head = _TRAILER.pack(_MAGIC, rows, crc32c(directory), 0)[:-4]
    return b"".join((*parts, directory, head, struct.pack("<I", crc32c(head))))


def key_hashes(keys: Any) -> Hashes:
    """The hashes of an Arrow array of keys, binary or text; zeros for a null."""
    of = pa.types
    wide = of.is_large_binary(keys.type) or of.is_large_string(keys.type)
    if not (wide or of.is_binary(keys.type) or of.is_string(keys.type)):
        keys, wide = keys.cast(pa.large_binary()), True  # views and dictionaries, as other programs write them
    _, edges_buffer, data_buffer = keys.buffers()
    edges = np.frombuffer(edges_buffer, dtype=np.int64 if wide else np.int32)[keys.offset :][: len(keys) + 1]
    arena = np.frombuffer(data_buffer, dtype=np.uint8) if data_buffer is not None else np.zeros(0, dtype=np.uint8)
    lengths = np.diff(edges).astype(np.int32)
    if keys.null_count:
        lengths[keys.is_null().to_numpy(zero_copy_only=False)] = -1
    return hash_keys(arena, edges[:-1].astype(np.int64), lengths)


def row_hashes(columns: Mapping[str, Any]) -> Hashes:
    """The hash of each row's key, from Arrow arrays of the KEY_COLUMNS; the second may be missing."""
    hashes = key_hashes(columns["kafka_key"])
    if "kafka_key_bytes" in columns:  # keys that are no text
        other = columns["kafka_key_bytes"].is_valid().to_numpy(zero_copy_only=False)
        hashes[other] = key_hashes(columns["kafka_key_bytes"])[other]
    return hashes


def index_name(data_file: str) -> str:
    """The name of the index of a data file of this name."""
    return data_file.removesuffix(".parquet") + ".keys"


class SoughtKeys(NamedTuple):
    """Keys to look for."""

    hashes: Hashes
    """Sorted by their first words."""

    @staticmethod
    def of(hashes: Hashes) -> SoughtKeys:
        return SoughtKeys(hashes[np.argsort(hashes[:, 0], kind="stable")])


class KeyIndex:
    """An index that is read as far as it is needed."""

    def __init__(self, read: ReadRange, size_bytes: int) -> None:
        """Raises KeyIndexError, and the errors of `read`."""
        self._read = read
        if size_bytes < _TRAILER.size:
            raise KeyIndexError(f"{size_bytes} bytes are no key index")
        trailer = read(size_bytes - _TRAILER.size, _TRAILER.size)
        if len(trailer) != _TRAILER.size:
            raise KeyIndexError("the key index ends early")
        magic, self.rows, directory_crc32c, own_crc32c = _TRAILER.unpack(trailer)
        if magic != _MAGIC or crc32c(trailer[:-4]) != own_crc32c:
            raise KeyIndexError("the bytes are no key index, or damaged")
        blocks = -(-self.rows // BLOCK_ROWS)
        length = blocks * _ENTRY.itemsize
        if self.rows * ROW_BYTES + length + _TRAILER.size != size_bytes:
            raise KeyIndexError(f"a key index of {self.rows} rows does not have {size_bytes} bytes")
        directory = read(self.rows * ROW_BYTES, length) if length else b""
        if len(directory) != length or crc32c(directory) != directory_crc32c:
            raise KeyIndexError("the directory of the key index is damaged")
        self._entries = np.frombuffer(directory, dtype=_ENTRY)

    def find(self, wanted: SoughtKeys) -> NDArray[np.int64]:
        """The positions of the rows with these keys, rising. Raises KeyIndexError, and the errors of `read`."""
        firsts = wanted.hashes[:, 0]
        if not self.rows or not len(firsts):
            return np.zeros(0, dtype=np.int64)
        fences = self._entries["first"]
        # A block may end with the word with which the next one begins.
        begins = np.maximum(np.searchsorted(fences, firsts, side="left") - 1, 0)
        ends = np.searchsorted(fences, firsts, side="right")
        found: list[NDArray[np.int64]] = []
        for start, stop in _windows(begins, ends):
            # Both rise with the words, so the keys of these blocks follow one another.
            within = slice(int(np.searchsorted(ends, start, side="right")), int(np.searchsorted(begins, stop)))
            found.append(self._found(start, stop, wanted.hashes[within]))
        positions = np.concatenate(found) if found else np.zeros(0, dtype=np.int64)
        positions.sort()
        return positions

    def _found(self, start: int, stop: int, hashes: Hashes) -> NDArray[np.int64]:
        """The positions of `hashes` in the blocks from `start` up to `stop`."""
        firsts, others, positions = self._blocks(start, stop)
        low = np.searchsorted(firsts, hashes[:, 0], side="left")
        high = np.searchsorted(firsts, hashes[:, 0], side="right")
        runs = high - low
        # Row by row of the index, because keys may share a first word, though hardly any do.
        asked = np.repeat(np.arange(len(hashes)), runs)
        rows = np.repeat(low, runs) + np.arange(len(asked)) - np.repeat(np.cumsum(runs) - runs, runs)
        same = (others[rows] == hashes[asked, 1:]).all(axis=1)
        return np.unique(positions[rows[same]].astype(np.int64))

    def _blocks(self, start: int, stop: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.uint32]]:
        position = start * BLOCK_ROWS * ROW_BYTES
        end_row = min(stop * BLOCK_ROWS, self.rows)
        length = end_row * ROW_BYTES - position
        data = memoryview(self._read(position, length))
        if len(data) != length:
            raise KeyIndexError("the key index ends early")
        firsts: list[NDArray[np.uint64]] = []
        others: list[NDArray[np.uint64]] = []
        positions: list[NDArray[np.uint32]] = []
        for block in range(start, stop):
            rows = min(BLOCK_ROWS, self.rows - block * BLOCK_ROWS)
            body = data[(block - start) * BLOCK_ROWS * ROW_BYTES :][: rows * ROW_BYTES]
            if crc32c(body) != int(self._entries["crc32c"][block]):
                raise KeyIndexError(f"block {block} of the key index is damaged")
            firsts.append(np.frombuffer(body[: 8 * rows], dtype="<u8"))
            others.append(np.frombuffer(body[8 * rows : 32 * rows], dtype="<u8").reshape(rows, HASH_WORDS - 1))
            positions.append(np.frombuffer(body[32 * rows :], dtype="<u4"))
        return np.concatenate(firsts), np.concatenate(others), np.concatenate(positions)


def _windows(begins: NDArray[np.int64], ends: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Runs of blocks to read, each in one piece, for keys that need the blocks from `begins` up to `ends`."""
    edges = np.flatnonzero(begins[1:] > ends[:-1] + GAP_BLOCKS) + 1
    at_once = WINDOW_BYTES // (BLOCK_ROWS * ROW_BYTES)
    for first, behind in pairwise([0, *edges.tolist(), len(begins)]):
        start, stop = int(begins[first]), int(ends[behind - 1])
        for at in range(start, stop, at_once):
            yield at, min(at + at_once, stop)
