"""Why an extent is flagged, as metadata and files keep it: words for people, at their end what readers need of it.

A merge that flags an extent of a merged file loses nothing of its bytes but one thing: the CRC-32C that they were
written with, for its row now has that of the damaged ones. So the reason ends with it. Whoever adds up the batches'
own CRCs and gets that number knows that no header is damaged but bodies alone, and so where each batch lies and which
offsets it has. An extent flagged straight from L0 had no such sum. docs/file-format.md specifies the words.
"""

from __future__ import annotations

import re

_WRITTEN_WITH = re.compile(r"; written with CRC-32C ([0-9a-f]{8})\Z")


def with_written_crc(reason: str, crc32c: int) -> str:
    return f"{reason}; written with CRC-32C {crc32c:08x}"


def written_crc(reason: str) -> int | None:
    """The CRC-32C of the extent before it was damaged; None where nobody knew it."""
    found = _WRITTEN_WITH.search(reason)
    return int(found[1], 16) if found else None
