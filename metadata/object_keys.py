"""What the metadata reads out of an object key, which `storage/` makes: `<level>/<shard>/<yyyymmddhh>/<name>`.

Keys of another shape carry no hour; they are legal here and never count as old.
"""

from __future__ import annotations

import re

_HOUR = re.compile(r"/([0-9]{10})/")
_LEVEL = re.compile(r"l([0-2])/")


def key_hour(key: str) -> int | None:
    """The hour as a number, yyyymmddhh, or None."""
    found = _HOUR.search(key)
    return int(found[1]) if found else None


def key_level(key: str) -> int:
    """0, 1 or 2 by the key's first part; 0 when it says nothing."""
    found = _LEVEL.match(key)
    return int(found[1]) if found else 0
