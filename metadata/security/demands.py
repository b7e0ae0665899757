"""Reports of what clients ask of an agent, as the stores keep them: for each share its number and its demand."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

from runtime.errors import BugError
from security.quotas.sharing import REPORTED_MAX

FORGOTTEN_AFTER_MS: Final = 600_000
"""A report that counts no more is deleted so much later, by the report of another agent."""
_ENTRY: Final = struct.Struct("<qf")


def encode_demands(demands: Mapping[int, float]) -> bytes:
    if len(demands) > REPORTED_MAX:
        raise BugError(f"a report of {len(demands)} demands is longer than {REPORTED_MAX}")
    return b"".join(_ENTRY.pack(number, demand) for number, demand in sorted(demands.items()))


def decode_demands(report: bytes) -> Mapping[int, float]:
    """A report that cannot be read says nothing: one bad report must not end the sharing at all other agents."""
    if len(report) % _ENTRY.size:
        return {}
    return {number: demand for number, demand in _ENTRY.iter_unpack(report) if 0 <= demand <= 1}
