"""Which extents retention deletes, and what a topic's configs mean to the compactor. Pure; both metadata stores use it.

The rules are Kafka's (`UnifiedLog.deleteOldSegments`) with extents in place of segments: by time and by size, whole
extents, oldest first, up to the first extent that stays. Retention also stops where the unbroken stretch of L1+ extents
from the log start ends, because an L0 file begins there, whose records are younger.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from metadata.configs.topic import as_int, as_list, resolve

TIMESTAMP_MS_MAX = 2**62
"""Producers may send any timestamp. Values are cut to this, so that a sum of two fits 64 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPolicy:
    compacts: bool
    deletes: bool
    retention_ms: int
    """-1 = no limit. Without effect unless `deletes`; so is `retention_bytes`."""
    retention_bytes: int

    @property
    def expires_after_ms(self) -> int | None:
        """The age at which retention by time deletes an extent; None = never."""
        return self.retention_ms if self.deletes and self.retention_ms >= 0 else None

    @property
    def is_limited(self) -> bool:
        return self.deletes and (self.retention_ms >= 0 or self.retention_bytes >= 0)


class AgedExtent(NamedTuple):
    """The values of an extent that retention needs."""

    extent_id: int
    base_offset: int
    last_offset: int
    length: int
    max_timestamp_ms: int
    """The creation time of its file if no record has a timestamp."""


def retention_policy(configs: Mapping[str, str]) -> RetentionPolicy:
    """The policy that a topic's configs (overrides over cluster-wide defaults) give."""
    resolved = resolve(configs)
    cleanup = as_list(resolved, "cleanup.policy")
    return RetentionPolicy(
        compacts="compact" in cleanup,
        deletes="delete" in cleanup,
        retention_ms=as_int(resolved, "retention.ms"),
        retention_bytes=as_int(resolved, "retention.bytes"),
    )


def expired_extents(
    extents: Sequence[AgedExtent], policy: RetentionPolicy, *, held_bytes: int, log_start_offset: int, now_ms: int
) -> Sequence[AgedExtent]:
    """The extents that retention deletes now: a prefix of `extents`, which are the first live ones of L1 and up of one
    partition, by offset. `held_bytes`: of all live ones.

    By time: an extent goes if now - largest timestamp > retention.ms. By size: an extent goes if the extents after it
    still have at least retention.bytes.
    """
    if not policy.is_limited:
        return ()
    remaining = held_bytes
    taken = 0
    end = log_start_offset
    for extent in extents:
        # Only the first extent may begin below the log start; each next one must touch the previous one.
        is_next = extent.base_offset <= end if taken == 0 else extent.base_offset == end
        is_old = policy.retention_ms >= 0 and now_ms - extent.max_timestamp_ms > policy.retention_ms
        # Before the test: Kafka deletes a segment only if the others still hold retention.bytes.
        remaining -= extent.length
        is_too_much = policy.retention_bytes >= 0 and remaining >= policy.retention_bytes
        if not is_next or not (is_old or is_too_much):
            break
        taken += 1
        end = extent.last_offset + 1
    return extents[:taken]


def expiry_ms(extents: Iterable[tuple[int, int | None]]) -> int | None:
    """When retention by time will have deleted all of `extents`; None = never. Each is (largest timestamp, expires
    after ms or None)."""
    last: int | None = None
    for max_timestamp_ms, after_ms in extents:
        if after_ms is None:
            return None
        # The same bounds as in SQL (`metadata/postgres/merges/views.py`), so that both stores answer alike.
        ends_ms = min(max_timestamp_ms, TIMESTAMP_MS_MAX) + min(after_ms, TIMESTAMP_MS_MAX - 1)
        last = ends_ms if last is None else max(last, ends_ms)
    return last


def cleanable_through(stretches: Iterable[tuple[int, int]], *, end_offset: int, min_lag_ms: int, now_ms: int) -> int:
    """The offset below which every record is older than `min.compaction.lag.ms`, at most `end_offset`.

    `stretches`: (base offset, largest timestamp) of all live extents of the partition, of any level, in any order.
    """
    if min_lag_ms <= 0:
        return end_offset
    young = (base_offset for base_offset, max_timestamp_ms in stretches if max_timestamp_ms > now_ms - min_lag_ms)
    return min(end_offset, min(young, default=end_offset))
