"""Retention, round by round: whole extents go when they are old or too many, and the log start moves.

What expires is decided and done by the metadata store, in one transaction a round and on its own clock. A crash between
rounds leaves nothing undone that the next call does not do.
"""

from __future__ import annotations

from dataclasses import dataclass

from metadata.contract.compaction import CompactionMetadata
from runtime.logging import get_logger
from runtime.metrics import Metrics

_log = get_logger(__name__)

ROUND_EXTENTS = 10_000
ROUNDS_MAX = 1_000
"""Of one call: other duties come in between. The oldest go first, so nothing is left behind for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    extents: int
    bytes: int
    partitions: int
    """Moves of a log start; a partition that took several rounds counts in each."""
    producers: int


class Retention:
    def __init__(
        self,
        *,
        metadata: CompactionMetadata,
        metrics: Metrics,
        round_extents: int = ROUND_EXTENTS,
        rounds_max: int = ROUNDS_MAX,
    ) -> None:
        self._metadata = metadata
        self._metrics = metrics
        self._round_extents = round_extents
        self._rounds_max = rounds_max

    async def apply(self) -> Applied:
        """Until a round takes nothing, or for `rounds_max`. Raises MetadataUnavailableError."""
        extents = taken_bytes = partitions = 0
        for _ in range(self._rounds_max):
            expired = await self._metadata.expire(limit=self._round_extents)
            self._metrics.expired_extents_total.inc(expired.extents)
            self._metrics.expired_bytes_total.inc(expired.bytes)
            extents += expired.extents
            taken_bytes += expired.bytes
            partitions += expired.partitions
            if not expired.extents:  # a round has other bounds than ours: a short one says nothing
                break
        producers = await self._metadata.expire_producers()
        self._metrics.expired_producers_total.inc(producers)
        if extents or producers:
            _log.info(
                "retention applied", extents=extents, bytes=taken_bytes, partitions=partitions, producers=producers
            )
        return Applied(extents=extents, bytes=taken_bytes, partitions=partitions, producers=producers)
