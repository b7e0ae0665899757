"""The uncompressed size that a compressed payload says of itself, without decompressing it.

gzip keeps it in its last four bytes; a Snappy block begins with it, and Snappy's Java framing is a row of such blocks.
A zstd or LZ4 frame may have it in its header: one-shot compressors write it, those of Java's clients do not. 0 = the
payload does not say. Nothing checks these numbers before the records are read, so they are for sizing alone.
"""

from __future__ import annotations

from wire.codecs import Codec
from wire.kernels.compiled import compiled, inlined, register_warm
from wire.kernels.memory import load_i32, load_u8, load_u32, load_u32_le
from wire.records import DECOMPRESSED_BYTES_MAX

_GZIP, _SNAPPY, _LZ4, _ZSTD = int(Codec.GZIP), int(Codec.SNAPPY), int(Codec.LZ4), int(Codec.ZSTD)
_ZSTD_MAGIC, _LZ4_MAGIC = 0xFD2FB528, 0x184D2204
_XERIAL_HEAD, _XERIAL_HEAD_BYTES = int.from_bytes(b"\x82SNA"), 16
_SAID_MAX = DECOMPRESSED_BYTES_MAX


@compiled
def said_bytes(at: int, length: int, codec: int) -> int:
    """The size that the payload of `length` bytes at address `at` says, at most DECOMPRESSED_BYTES_MAX; for kernels."""
    said = 0
    if codec == _GZIP:
        said = load_u32_le(at + length - 4) if length >= 18 else 0
    elif codec == _SNAPPY:
        said = _snappy(at, length)
    elif codec == _LZ4:
        if length >= 15 and load_u32_le(at) == _LZ4_MAGIC and load_u8(at + 4) & 8:
            said = _little_endian(at + 6, 8)
    elif codec == _ZSTD and length >= 5 and load_u32_le(at) == _ZSTD_MAGIC:
        said = _zstd(at, length)
    return min(max(said, 0), _SAID_MAX)


@inlined
def _little_endian(at: int, count: int) -> int:
    value = 0
    for index in range(count):
        value |= load_u8(at + index) << (8 * index)
    return value


@compiled
def _zstd(at: int, length: int) -> int:
    descriptor = load_u8(at + 4)
    flag, is_single = descriptor >> 6, (descriptor >> 5) & 1
    dictionary = descriptor & 3
    start = 5 + (1 - is_single) + (4 if dictionary == 3 else dictionary)
    count = (is_single if flag == 0 else 1 << flag) if flag < 3 else 8
    if count == 0 or start + count > length:
        return 0
    return _little_endian(at + start, count) + (256 if flag == 1 else 0)


@compiled
def _snappy(at: int, length: int) -> int:
    if length < _XERIAL_HEAD_BYTES or load_u32(at) != _XERIAL_HEAD:
        return _varint(at, length)
    said, position = 0, _XERIAL_HEAD_BYTES
    while length - position > 4:
        block = load_i32(at + position)
        position += 4
        if block < 1 or block > length - position:
            return 0
        said += _varint(at + position, block)
        position += block
    return said


@inlined
def _varint(at: int, length: int) -> int:
    value, shift = 0, 0
    while shift < 35 and shift // 7 < length:
        byte = load_u8(at + shift // 7)
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value
        shift += 7
    return 0


def said_bytes_python(payload: memoryview, codec: int) -> int:
    """`said_bytes` of `payload`, in Python."""
    said = 0
    if codec == _GZIP:
        said = int.from_bytes(payload[-4:], "little") if len(payload) >= 18 else 0
    elif codec == _SNAPPY:
        said = _snappy_python(payload)
    elif codec == _LZ4:
        if len(payload) >= 15 and int.from_bytes(payload[:4], "little") == _LZ4_MAGIC and payload[4] & 8:
            said = int.from_bytes(payload[6:14], "little", signed=True)
    elif codec == _ZSTD and len(payload) >= 5 and int.from_bytes(payload[:4], "little") == _ZSTD_MAGIC:
        said = _zstd_python(payload)
    return min(max(said, 0), _SAID_MAX)


def _zstd_python(payload: memoryview) -> int:
    flag, is_single, dictionary = payload[4] >> 6, (payload[4] >> 5) & 1, payload[4] & 3
    start = 5 + (not is_single) + (0, 1, 2, 4)[dictionary]
    count = (is_single, 2, 4, 8)[flag]
    if not count or start + count > len(payload):
        return 0
    return int.from_bytes(payload[start : start + count], "little", signed=count == 8) + (256 if flag == 1 else 0)


def _snappy_python(payload: memoryview) -> int:
    if len(payload) < _XERIAL_HEAD_BYTES or int.from_bytes(payload[:4]) != _XERIAL_HEAD:
        return _varint_python(payload)
    said, position = 0, _XERIAL_HEAD_BYTES
    while len(payload) - position > 4:
        block = int.from_bytes(payload[position : position + 4], "big", signed=True)
        position += 4
        if not 1 <= block <= len(payload) - position:
            return 0
        said += _varint_python(payload[position : position + block])
        position += block
    return said


def _varint_python(payload: memoryview) -> int:
    value = 0
    for index, byte in enumerate(payload[:5]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value
    return 0


@register_warm
def _warm() -> None:
    said_bytes(0, 0, _ZSTD)
