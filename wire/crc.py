"""CRC-32C (Castagnoli, RFC 3720 appendix B.4), the checksum of record batch v2 and of our own file index.

One function over the `crc32c` wheel, which reads any contiguous buffer in place (a memoryview is not copied) and
uses the processor's own instruction. Why this wheel: docs/decisions/0002-crc32c-and-codecs.md.
"""

from __future__ import annotations

from typing import TypeAlias

from crc32c import crc32c as _crc32c

Body: TypeAlias = bytes | bytearray | memoryview
"""A run of bytes, owned or borrowed. A memoryview must be contiguous and of format 'B'."""


def crc32c(data: Body, value: int = 0) -> int:
    """The CRC-32C of `data`, an unsigned 32-bit number.

    `value` is the CRC of what came before, so `crc32c(b, crc32c(a)) == crc32c(a + b)`.
    """
    return _crc32c(data, value)
