"""The level and the hour in an object key. `storage/` makes the keys: `<level>/<shard>/<yyyymmddhh>/<name>`.

Keys of another shape carry no hour. They are legal here and never count as old.

No commit may succeed with a key whose row was forgotten, because the object of that key was deleted. So both stores
refuse keys of the hour `forgotten_key_hour` and before. They keep this rule: *a row is forgotten only when the hour of
its key is at most the hour of `before_ms`, and `forgotten_key_hour` moves to the latest hour among the forgotten keys*.
So every forgotten key is refused, and no key of a writer whose clock is right. A key from a clock that was ahead keeps
its row until its hour is that old; until then the row refuses a second commit.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

_HOUR = re.compile(r"/([0-9]{10})/")
_MS_MAX = 253_402_300_799_000
"""The last second of the year 9999, the latest that datetime can hold."""
_LEVEL = re.compile(r"l([0-2])/")


def key_hour(key: str) -> int | None:
    """The hour in the key as a number, yyyymmddhh; None if the key carries no hour."""
    found = _HOUR.search(key)
    return int(found[1]) if found else None


def key_too_old(key: str) -> str:
    """The reason to refuse a key of a forgotten hour, in the words of `commit_l0_v1.sql`."""
    return f"key {key} is as old as rows that were forgotten: the clock by which it was made is behind"


def hour_at(ms: int) -> int:
    """The hour of a time, in the form of `key_hour`."""
    return int(datetime.fromtimestamp(min(max(ms, 0), _MS_MAX) // 1000, UTC).strftime("%Y%m%d%H"))


def key_level(key: str) -> int:
    """0, 1 or 2 by the key's first part; 0 for keys of another shape."""
    found = _LEVEL.match(key)
    return int(found[1]) if found else 0
