"""What the metadata reads out of an object key, which `storage/` makes: `<level>/<shard>/<yyyymmddhh>/<name>`.

Keys of another shape carry no hour; they are legal here and never count as old.

No commit may win a key whose row was forgotten: its object was deleted. So both stores refuse keys of the hour
`forgotten_key_hour` and before, and keep this rule: *a row is forgotten only when its key's hour is at most that of the
time before which rows are forgotten, and `forgotten_key_hour` moves to the latest hour among the forgotten*. Every
forgotten key is refused then, and none of a writer whose clock is right. A key from a clock that was ahead keeps its
row until its hour is that old, and the row answers for it.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

_HOUR = re.compile(r"/([0-9]{10})/")
KEY_TOO_OLD_HINT = "the clock by which it was made is behind"
_MS_MAX = 253_402_300_799_000
"""The last second of the year 9999."""
_LEVEL = re.compile(r"l([0-2])/")


def key_hour(key: str) -> int | None:
    """The hour as a number, yyyymmddhh, or None."""
    found = _HOUR.search(key)
    return int(found[1]) if found else None


def hour_at(ms: int) -> int:
    """The hour of a time, as `key_hour` has it."""
    return int(datetime.fromtimestamp(min(max(ms, 0), _MS_MAX) // 1000, UTC).strftime("%Y%m%d%H"))


def key_level(key: str) -> int:
    """0, 1 or 2 by the key's first part; 0 when it says nothing."""
    found = _LEVEL.match(key)
    return int(found[1]) if found else 0
