"""The values that travel to the tasks of `read_latest`: slices, options and pin; and the work on one slice."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from compactor.heavy.key_scan import KeyBlock
from runtime.clock import SystemClock
from runtime.errors import UnavailableError
from spark_jobs import worker_process
from spark_jobs.keys.layout import Surviving
from spark_jobs.latest.passes import key_blocks, surviving_batches
from spark_jobs.latest.pinned_store import PinnedStore
from spark_jobs.scan.blocking import BlockingStore
from spark_jobs.scan.contract import PinLostError, Slice
from spark_jobs.source.metadata import MetadataThread
from spark_jobs.source.options import SourceOptions
from spark_jobs.source.pins import Pin, Renewal, renew

_renewed_ms: dict[tuple[str, int], int] = {}
"""The time at which this process last renewed a pin, by metadata URL and pin id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatestTasks:
    """Pickled once for all tasks: a slice is compressed JSON until its own task reads it."""

    options: SourceOptions
    pin: Pin
    slices: tuple[bytes, ...]

    @classmethod
    def of(cls, options: SourceOptions, pin: Pin, slices: Sequence[Slice]) -> LatestTasks:
        packed = tuple(zlib.compress(each.to_json().encode(), 1) for each in slices)
        return cls(options=options, pin=pin, slices=packed)

    def read(self, number: int) -> Iterator[KeyBlock]:
        """The keys of a slice. Raises as `read_slice`, and PinLostError."""
        yield from key_blocks(self._store(), self._slice(number), self.options.scan)
        worker_process.settle()

    def take(self, number: int, surviving: Surviving) -> Iterator[Any]:
        """Record batches of the survivors of a slice. Raises as `surviving_batches`, and PinLostError."""
        yield from surviving_batches(
            self._store(),
            self._slice(number),
            self.options.scan,
            surviving,
            keep_tombstones=self.options.keep_tombstones,
        )
        worker_process.settle()

    def _slice(self, number: int) -> Slice:
        return Slice.from_json(zlib.decompress(self.slices[number]))

    def _store(self) -> BlockingStore:
        return PinnedStore(BlockingStore.at(self.options.object_store_url), self._gone)

    def _gone(self, key: str) -> None:
        """Return if the pin still holds. Raises PinLostError."""
        topic = self.options.scan.topic
        try:
            with MetadataThread(self.options.metadata_url) as metadata:
                holds = renew(metadata, self.pin)
        except UnavailableError as error:
            raise PinLostError(
                f"object {key!r} of topic {topic!r} is not in the store, and the metadata store cannot be asked from"
                f" here whether the pin still holds: {error.message}",
                remedy="call read_latest again with a larger pinTtl, or let executors reach Postgres",
            ) from error
        if not holds:
            raise PinLostError(
                f"object {key!r} of topic {topic!r} was deleted before it was read: the pin of this read had run out",
                remedy="call read_latest again; a larger pinTtl keeps files longer",
            )


def pin_renewal(url: str, pin: Pin) -> Renewal:
    """The renewal for one task: a process that runs many small ones asks Postgres no more often than for one."""
    place, clock = (url, pin.pin_id), SystemClock()

    def ask() -> bool:
        with MetadataThread(url, retry_ms=pin.renew_every_ms) as metadata:
            holds = renew(metadata, pin)
        _renewed_ms[place] = clock.wall_ms()
        return holds

    # The clocks of driver and executor may differ; a negative wait would put the first renewal too late.
    waited_ms = max(0, clock.wall_ms() - _renewed_ms.get(place, pin.made_ms))
    every_ms = pin.renew_every_ms
    return Renewal(ask, first_ms=max(0.0, every_ms - waited_ms), every_ms=every_ms)
