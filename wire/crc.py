"""CRC-32C (Castagnoli, RFC 3720 appendix B.4), the checksum of record batch v2 and of our own file index.

One function over the `crc32c` wheel, which reads any contiguous buffer in place (a memoryview is not copied) and uses
the processor's own instruction. Why this wheel: docs/decisions/0002-crc32c-and-codecs.md.

`joined_crc32c` computes the CRC of two stretches from the CRC of each, without their bytes. A CRC is linear: zero bytes
behind a stretch multiply its CRC by a matrix over GF(2) that depends only on their number. zlib's `crc32_combine` uses
the same fact.
"""

from __future__ import annotations

from functools import cache
from typing import TypeAlias

from crc32c import crc32c as _crc32c

Body: TypeAlias = bytes | bytearray | memoryview
"""A run of bytes, owned or borrowed. A memoryview must be contiguous and of format 'B'."""


def crc32c(data: Body, value: int = 0) -> int:
    """The CRC-32C of `data`, an unsigned 32-bit number.

    `value` is the CRC of what came before, so `crc32c(b, crc32c(a)) == crc32c(a + b)`.
    """
    return _crc32c(data, value)


JOINED_BYTES_MIN = 512 << 10
"""The least size in bytes for joining. Below it, summing the bytes is quicker, because the tables for joining have left
the processor's cache by then."""
_POLYNOMIAL = 0x82F63B78
"""Castagnoli's, bits reversed."""

_Tables: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]


def joined_crc32c(first: int, second: int, second_bytes: int) -> int:
    """The CRC-32C of two stretches one after the other, from the CRC-32C of each and the length of the second.

    `joined_crc32c(crc32c(a), crc32c(b), len(b)) == crc32c(a + b)`. Takes some microseconds, whatever the length.
    """
    # Zero bytes do not change a CRC of 0, which is that of no bytes.
    if not first:
        return second
    power = 0
    while second_bytes:
        if second_bytes & 1:
            byte_0, byte_1, byte_2, byte_3 = _zero_bytes(power)
            first = byte_0[first & 255] ^ byte_1[first >> 8 & 255] ^ byte_2[first >> 16 & 255] ^ byte_3[first >> 24]
        second_bytes >>= 1
        power += 1
    return first ^ second


@cache
def _zero_bytes(power: int) -> _Tables:
    """The effect of 2^power zero bytes on a CRC: for each of its four bytes, lowest first, a table to be XORed."""
    columns = _columns(power)
    tables: list[tuple[int, ...]] = []
    for byte in range(4):
        table = [0] * 256
        for value in range(1, 256):
            lowest = value & -value
            table[value] = table[value ^ lowest] ^ columns[8 * byte + lowest.bit_length() - 1]
        tables.append(tuple(table))
    return tables[0], tables[1], tables[2], tables[3]


@cache
def _columns(power: int) -> tuple[int, ...]:
    """The matrix of 2^power zero bytes, as the image of each bit."""
    if power:
        half = _columns(power - 1)
        return tuple(_times(half, column) for column in half)
    # The effect of one zero bit: bit 0 leaves and adds the polynomial, every other bit moves down by one.
    one_bit = (_POLYNOMIAL, *(1 << bit for bit in range(31)))
    # Squared three times: from one zero bit to eight, a zero byte.
    for _ in range(3):
        one_bit = tuple(_times(one_bit, column) for column in one_bit)
    return one_bit


def _times(columns: tuple[int, ...], vector: int) -> int:
    product = 0
    for column in columns:
        if vector & 1:
            product ^= column
        vector >>= 1
    return product
