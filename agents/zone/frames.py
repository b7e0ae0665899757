"""The call between two agents of a zone: bytes to values and back. Pure.

A connection carries one request at a time. All numbers are big-endian.

    request  magic `SZQ`, version, pool, bytes of cluster id (1), bytes of key (2), size of the file (8), start (8),
             length (4); then the cluster id and the key, in UTF-8
    answer   magic `SZA`, version, outcome, age in ms (4), length (4), CRC-32C (4); then `length` bytes

The CRC begins with the request's place (`answer_crc`), so right bytes of another file or range do not pass for it.
A request names whole blocks of one file, as a GET of `agents/read/blocks.py` does.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from agents.read.blocks import GET_BLOCKS_MAX
from agents.read.cache import BLOCK_BYTES
from runtime.errors import BadInputError
from storage.keys import KEY_BYTES_MAX
from wire.crc import crc32c
from wire.schema import Octets

VERSION = 1
CLUSTER_BYTES_MAX = 255
LENGTH_MAX = (GET_BLOCKS_MAX + 1) * BLOCK_BYTES
"""The longest answer in bytes: that of the longest GET."""
FILE_BYTES_MAX = 1 << 50
AGE_MS_MAX = (1 << 32) - 1
_REQUEST = struct.Struct(">3sBBBHQQI")
_ANSWER = struct.Struct(">3sBBIII")
_PLACE = struct.Struct(">HQQII")
_REQUEST_MAGIC, _ANSWER_MAGIC = b"SZQ", b"SZA"
REQUEST_HEAD_BYTES, ANSWER_HEAD_BYTES = _REQUEST.size, _ANSWER.size
REQUEST_BYTES_MAX = REQUEST_HEAD_BYTES + CLUSTER_BYTES_MAX + KEY_BYTES_MAX


class BadFrameError(BadInputError):
    """The other side does not speak this protocol, or not this version. Its connection is closed."""


class Pool(IntEnum):
    """Where the blocks belong in the memory of the agent that serves them."""

    HOT = 0
    COLD = 1


class Outcome(IntEnum):
    SERVED = 0
    BUSY = 1
    """The agent serves others; it would have to make this one wait."""
    FAILED = 2
    """It did not get the bytes. The object store, asked directly, says why."""
    STRANGER = 3
    """It belongs to another cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Whole blocks of one file: `start` is that of a block, and so is the end, or it is the file's."""

    cluster_id: str
    key: str
    pool: Pool
    file_bytes: int
    start: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestHead:
    """The fixed part of a request, checked; the texts follow."""

    pool: Pool
    cluster_bytes: int
    key_bytes: int
    file_bytes: int
    start: int
    length: int

    @property
    def rest_bytes(self) -> int:
        return self.cluster_bytes + self.key_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerHead:
    """The fixed part of an answer; the bytes follow."""

    outcome: Outcome
    age_ms: int = 0
    """How long before the answer the object store, or the commit, last proved that the file exists."""
    length: int = 0
    crc: int = 0


def encode_request(request: Request) -> bytes:
    """Raises BadFrameError for a request that `decode_request_head` would refuse."""
    cluster_id, key = request.cluster_id.encode(), request.key.encode()
    if len(cluster_id) > CLUSTER_BYTES_MAX or not 0 < len(key) <= KEY_BYTES_MAX:
        raise BadFrameError(f"no request for a key of {len(key)} bytes in a cluster id of {len(cluster_id)}")
    _check_place(request.file_bytes, request.start, request.length)
    place = (len(key), request.file_bytes, request.start, request.length)
    return _REQUEST.pack(_REQUEST_MAGIC, VERSION, request.pool, len(cluster_id), *place) + cluster_id + key


def decode_request_head(data: Octets) -> RequestHead:
    """From REQUEST_HEAD_BYTES bytes. Raises BadFrameError."""
    magic, version, pool, cluster_bytes, key_bytes, file_bytes, start, length = _REQUEST.unpack(data)
    if magic != _REQUEST_MAGIC or version != VERSION or pool not in (Pool.HOT, Pool.COLD):
        raise BadFrameError("no request of this version")
    if not 0 < key_bytes <= KEY_BYTES_MAX:
        raise BadFrameError(f"a key of {key_bytes} bytes")
    _check_place(file_bytes, start, length)
    return RequestHead(
        pool=Pool(pool),
        cluster_bytes=cluster_bytes,
        key_bytes=key_bytes,
        file_bytes=file_bytes,
        start=start,
        length=length,
    )


def decode_request(head: RequestHead, rest: Octets) -> Request:
    """`rest`: the `head.rest_bytes` bytes behind the head. Raises BadFrameError."""
    try:
        cluster_id = bytes(rest[: head.cluster_bytes]).decode()
        key = bytes(rest[head.cluster_bytes :]).decode()
    except UnicodeDecodeError as error:
        raise BadFrameError("a text that is not UTF-8") from error
    return Request(
        cluster_id=cluster_id,
        key=key,
        pool=head.pool,
        file_bytes=head.file_bytes,
        start=head.start,
        length=head.length,
    )


def encode_answer(head: AnswerHead) -> bytes:
    return _ANSWER.pack(_ANSWER_MAGIC, VERSION, head.outcome, head.age_ms, head.length, head.crc)


def decode_answer_head(data: Octets, asked: Request) -> AnswerHead:
    """From ANSWER_HEAD_BYTES bytes. Raises BadFrameError, also for an answer of another length than was asked for."""
    magic, version, outcome, age_ms, length, crc = _ANSWER.unpack(data)
    if magic != _ANSWER_MAGIC or version != VERSION or outcome not in tuple(Outcome):
        raise BadFrameError("no answer of this version")
    if length != (asked.length if outcome == Outcome.SERVED else 0):
        raise BadFrameError(f"{length} bytes instead of {asked.length}")
    return AnswerHead(outcome=Outcome(outcome), age_ms=age_ms, length=length, crc=crc)


def answer_crc(asked: Request, age_ms: int, parts: Iterable[Octets]) -> int:
    """The CRC-32C of an answer's age and bytes at their place."""
    key = asked.key.encode()
    value = crc32c(_PLACE.pack(len(key), asked.file_bytes, asked.start, asked.length, age_ms) + key)
    for part in parts:
        value = crc32c(part, value)
    return value


def _check_place(file_bytes: int, start: int, length: int) -> None:
    end = start + length
    ends_well = end == file_bytes or (end < file_bytes and end % BLOCK_BYTES == 0)
    if not (0 < length <= LENGTH_MAX and start % BLOCK_BYTES == 0 and ends_well and file_bytes <= FILE_BYTES_MAX):
        raise BadFrameError(f"{length} bytes from {start} of {file_bytes} are not whole blocks of a file")
