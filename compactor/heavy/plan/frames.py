"""An object of many frames, of which a reader takes one: plans of heavy merges, and facts about slices. Pure.

    magic 8, version u16, reserved u16, frames u32
    directory: for the head, then for each frame: position u64, length u32, the first 20 bytes of its SHA-256
    the head, the frames: JSON, compressed by zstd

All numbers are big-endian. `fingerprint_of` covers everything before the head, and so, by the digests, all of the
object. A reader that knows the fingerprint needs the beginning of the object and one frame, and can tell that both are
those that were written.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Iterable
from typing import Any, NamedTuple

import zstandard

from runtime.errors import BadInputError

MAGIC = b"SILTFRMS"
VERSION = 1
FRAMES_MAX = 1 << 22
FRAME_BYTES_MAX = 1 << 30
"""Of JSON. No more is decompressed, whatever size a frame claims."""
FINGERPRINT_HEX = 32
_PREFIX = struct.Struct(">8sHHI")
_ENTRY = struct.Struct(">QI20s")
_DIGEST_BYTES = 20
FIRST_READ_BYTES = 64 << 10
"""A first read of so many bytes has the head too, unless there are many frames."""


class FramesError(BadInputError):
    """The object is not made of frames, is damaged, or is of another version."""


class Frame(NamedTuple):
    """The place of a head or a frame in its object."""

    position: int
    length: int
    digest: bytes

    def body(self, stored: bytes | memoryview) -> bytes:
        """The JSON. `stored`: the frame's bytes. Raises FramesError."""
        if len(stored) != self.length or hashlib.sha256(stored).digest()[:_DIGEST_BYTES] != self.digest:
            raise FramesError(f"the frame at byte {self.position} is not the one that was written")
        return decompress(bytes(stored), FRAME_BYTES_MAX)


class Directory(NamedTuple):
    head: Frame
    frames: tuple[Frame, ...]
    fingerprint: str


def encode_frames(head: bytes, frames: Iterable[bytes]) -> bytes:
    """The object. `head` and `frames`: JSON."""
    compressor = zstandard.ZstdCompressor(level=3)
    parts = [compressor.compress(each) for each in (head, *frames)]
    position = _PREFIX.size + _ENTRY.size * len(parts)
    entries: list[bytes] = []
    for part in parts:
        entries.append(_ENTRY.pack(position, len(part), hashlib.sha256(part).digest()[:_DIGEST_BYTES]))
        position += len(part)
    return b"".join((_PREFIX.pack(MAGIC, VERSION, 0, len(parts) - 1), *entries, *parts))


def directory_bytes(beginning: bytes) -> int:
    """The size of prefix and directory. `beginning`: the first bytes of the object. Raises FramesError."""
    if len(beginning) < _PREFIX.size or beginning[: len(MAGIC)] != MAGIC:
        raise FramesError("the object does not begin as one of frames does")
    _, version, _, count = _PREFIX.unpack_from(beginning)
    if version != VERSION:
        raise FramesError(f"the object has frames of version {version}; this release reads {VERSION}")
    if count > FRAMES_MAX:
        raise FramesError(f"the object claims to have {count} frames; up to {FRAMES_MAX} are accepted")
    return _PREFIX.size + _ENTRY.size * (count + 1)


def read_directory(beginning: bytes) -> Directory:
    """`beginning`: at least `directory_bytes` from the object's start. Raises FramesError."""
    size = directory_bytes(beginning)
    if len(beginning) < size:
        raise FramesError(f"the object ends after {len(beginning)} bytes, within its directory of {size}")
    head, *frames = (Frame(*each) for each in _ENTRY.iter_unpack(beginning[_PREFIX.size : size]))
    return Directory(head, tuple(frames), fingerprint_of(beginning[:size]))


def fingerprint_of(stored: bytes) -> str:
    """The fingerprint, in hex. `stored`: the object, or its beginning up to the head."""
    return hashlib.sha256(memoryview(stored)[: directory_bytes(stored)]).hexdigest()[:FINGERPRINT_HEX]


def piece(stored: bytes, frame: Frame, *, start: int = 0) -> memoryview:
    """The bytes of a frame within `stored`, which begins at byte `start` of the object."""
    return memoryview(stored)[frame.position - start : frame.position - start + frame.length]


def decompress(stored: bytes, bytes_max: int) -> bytes:
    """Decompresses zstd. Raises FramesError, also for a frame that claims more than `bytes_max`."""
    try:
        size = zstandard.get_frame_parameters(stored).content_size
        if not 0 < size <= bytes_max:
            raise FramesError(f"the object claims to hold {size} bytes of JSON; from 1 to {bytes_max} are accepted")
        return zstandard.ZstdDecompressor().decompress(stored)
    except zstandard.ZstdError as error:
        raise FramesError(f"the object is not zstd: {error}") from error


def load_json(body: bytes) -> object:
    """Parses JSON that Postgres accepts too. Raises ValueError, also for NaN, for numbers beyond a double, and for JSON
    that is nested too deeply."""
    try:
        return json.loads(body, parse_constant=_no_number, parse_float=_finite)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def dump_json(value: object) -> bytes:
    """The one form of the JSON, from which fingerprints are made."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def whole_number(value: Any) -> int:
    """Raises TypeError for anything but an `int`, ValueError beyond 64 bits: offsets and sizes become bigints in
    Postgres, and a larger number must fail where the object can be named."""
    # By `type`, because `bool` is an `int` for isinstance, but not a number of this format.
    if type(value) is not int:
        raise TypeError(f"{value!r} is not a whole number")
    if not -(2**63) <= value < 2**63:
        raise ValueError(f"a whole number of {value.bit_length()} bits")
    return value


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is beyond a double")
    return value


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number")
