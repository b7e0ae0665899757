"""The reason why an extent is flagged, as metadata and files keep it: words for people, with a number for readers at
the end.

A merge that flags an extent loses none of its bytes, but it loses the CRC-32C that they were written with: the new row
has the CRC-32C of the damaged bytes. So the reason ends with the old one. A reader that adds up the batches' own CRCs
and gets that number knows that no header is damaged, only bodies. So it knows where each batch lies and which offsets
it has. An extent that was flagged straight from L0 had no such sum. docs/file-format.md specifies the words.
"""

from __future__ import annotations

import re

_WRITTEN_WITH = re.compile(r"; written with CRC-32C ([0-9a-f]{8})\Z")


def with_written_crc(reason: str, crc32c: int) -> str:
    return f"{reason}; written with CRC-32C {crc32c:08x}"


def written_crc(reason: str) -> int | None:
    """The CRC-32C of the extent before it was damaged; None if it was unknown."""
    found = _WRITTEN_WITH.search(reason)
    return int(found[1], 16) if found else None
