"""CRC-32C inside kernels, by the processor's instruction where it has one.

SSE 4.2 sums eight bytes per instruction. It starts one each cycle but delivers the result three cycles later, so three
stretches side by side keep it busy, and a table of the effect of zero bytes joins them (see `wire/crc.py`). Bytes from
memory are prefetched one round ahead. Other processors look up eight bytes at a time in eight tables.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.crc import crc32c
from wire.kernels.compiled import address_of, compiled, cpu_features, intrinsic, register_warm
from wire.kernels.memory import ir, load_u8, load_u64_le, prefetch_read, to_int, types

POWERS = 31
"""Powers of two: stretches below 2^31 bytes can be joined, and no batch is longer."""

HAS_INSTRUCTION = "sse4.2" in cpu_features()
_ALL = 0xFFFFFFFF
_LONG, _MIDDLE, _SHORT = 4096, 512, 128
"""The bytes of one of three stretches. A join costs eight look-ups, so anything shorter than 3 * 128 is summed in one
go."""
_LINE = 64
"""The bytes of a cache line. Stretches are a multiple of it."""


def _shift_tables(bytes_count: int) -> NDArray[np.uint32]:
    """[4, 256]: the effect of `bytes_count` zero bytes on each byte of a CRC, lowest first; to be XORed."""
    zeros = bytes(bytes_count)
    rows = [[crc32c(zeros, value << 8 * byte ^ _ALL) ^ _ALL for value in range(256)] for byte in range(4)]
    return np.array(rows, dtype=np.uint32)


_AFTER_LONG = _shift_tables(_LONG)
_AFTER_MIDDLE = _shift_tables(_MIDDLE)
_AFTER_SHORT = _shift_tables(_SHORT)
_SLICES: NDArray[np.uint32] = np.array(
    [[crc32c(bytes((value, *bytes(behind))), _ALL) ^ _ALL for value in range(256)] for behind in range(8)],
    dtype=np.uint32,
)
"""[8, 256]: the CRC of a byte with 0 to 7 zero bytes behind it."""


def _power_tables() -> NDArray[np.uint32]:
    """[31, 4, 256]: `_shift_tables` of 2^n bytes, each made of the one before it."""
    tables = np.empty((POWERS, 4, 256), dtype=np.uint32)
    tables[0] = _shift_tables(1)
    for power in range(1, POWERS):
        half = tables[power - 1]
        tables[power] = half[0][half & 255] ^ half[1][half >> 8 & 255] ^ half[2][half >> 16 & 255] ^ half[3][half >> 24]
    return tables


POWER_TABLES = _power_tables()
"""An argument of `joined_crc32c_of`: a constant would be copied into the code of each kernel."""


def _steps(crc: np.uint64, word: np.uint64) -> np.uint64: ...  # pyright: ignore[reportReturnType] -- a signature


@intrinsic(_steps)
def _step(typing_context: Any, crc: Any, word: Any) -> Any:
    """The instruction over eight bytes."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        long = ir.IntType(64)
        kind = ir.FunctionType(long, [long, long])
        return builder.call(builder.module.declare_intrinsic("llvm.x86.sse42.crc32.64.64", (), kind), arguments)

    return types.uint64(types.uint64, types.uint64), codegen


@intrinsic(_steps)
def _step_byte(typing_context: Any, crc: Any, byte: Any) -> Any:
    """The instruction over one byte."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        short, one = ir.IntType(32), ir.IntType(8)
        call = builder.module.declare_intrinsic("llvm.x86.sse42.crc32.32.8", (), ir.FunctionType(short, [short, one]))
        crc_before, value = arguments
        crc_after = builder.call(call, [builder.trunc(crc_before, short), builder.trunc(value, one)])
        return builder.zext(crc_after, ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), codegen


@compiled
def _shifted(tables: NDArray[np.uint32], crc: np.uint64) -> np.uint64:
    byte = np.uint64(255)
    low = tables[0, crc & byte] ^ tables[1, (crc >> np.uint64(8)) & byte]
    high = tables[2, (crc >> np.uint64(16)) & byte] ^ tables[3, (crc >> np.uint64(24)) & byte]
    return np.uint64(low ^ high)


@compiled
def _by_threes(position: int, stretch: int, tables: NDArray[np.uint32], crc: np.uint64) -> np.uint64:
    """The CRC after 3 * `stretch` bytes."""
    second, third = np.uint64(0), np.uint64(0)
    for line in range(position, position + stretch, _LINE):
        # The processor's own prefetcher does not foresee three places at once, each for a short while.
        for ahead in range(line + 3 * stretch, line + 6 * stretch, stretch):
            prefetch_read(ahead)
        for at in range(line, line + _LINE, 8):
            crc = _step(crc, load_u64_le(at))
            second = _step(second, load_u64_le(at + stretch))
            third = _step(third, load_u64_le(at + 2 * stretch))
    # Each CRC as if the stretches behind it were zero bytes, joined by XOR.
    return _shifted(tables, _shifted(tables, crc) ^ second) ^ third


@compiled
def _by_instruction(address: int, bytes_count: int, value: int) -> int:
    crc = np.uint64(value ^ _ALL)
    position, end = address, address + bytes_count
    while end - position >= 3 * _LONG:
        crc = _by_threes(position, _LONG, _AFTER_LONG, crc)
        position += 3 * _LONG
    while end - position >= 3 * _MIDDLE:
        crc = _by_threes(position, _MIDDLE, _AFTER_MIDDLE, crc)
        position += 3 * _MIDDLE
    while end - position >= 3 * _SHORT:
        crc = _by_threes(position, _SHORT, _AFTER_SHORT, crc)
        position += 3 * _SHORT
    while end - position >= 8:
        crc = _step(crc, load_u64_le(position))
        position += 8
    while position < end:
        crc = _step_byte(crc, np.uint64(load_u8(position)))
        position += 1
    return to_int(crc) ^ _ALL


@compiled
def crc32c_by_tables(address: int, bytes_count: int, value: int) -> int:
    """`crc32c_at` on every processor."""
    crc = value ^ _ALL
    position, end = address, address + bytes_count
    while end - position >= 8:
        word = to_int(load_u64_le(position)) ^ crc
        crc = to_int(
            _SLICES[7, word & 255]
            ^ _SLICES[6, word >> 8 & 255]
            ^ _SLICES[5, word >> 16 & 255]
            ^ _SLICES[4, word >> 24 & 255]
            ^ _SLICES[3, word >> 32 & 255]
            ^ _SLICES[2, word >> 40 & 255]
            ^ _SLICES[1, word >> 48 & 255]
            ^ _SLICES[0, word >> 56 & 255]
        )
        position += 8
    while position < end:
        crc = to_int(_SLICES[0, (crc ^ load_u8(position)) & 255]) ^ (crc >> 8)
        position += 1
    return crc ^ _ALL


crc32c_at = _by_instruction if HAS_INSTRUCTION else crc32c_by_tables
"""(address, bytes, CRC of the bytes before) -> CRC-32C, 0 to 2^32-1, for kernels; the caller has checked the bounds."""


@compiled
def joined_crc32c_of(tables: NDArray[np.uint32], first: int, second: int, second_bytes: int) -> int:
    """`wire.crc.joined_crc32c` for kernels, over `POWER_TABLES`."""
    crc = np.uint64(first)
    power = 0
    while second_bytes:
        if second_bytes & 1:
            crc = _shifted(tables[power], crc)
        second_bytes >>= 1
        power += 1
    return to_int(crc) ^ second


@register_warm
def _warm() -> None:
    data = np.zeros(8, dtype=np.uint8)
    for crc in (crc32c_at, crc32c_by_tables):
        crc(address_of(data), len(data), 0)
