"""A topic as a stream of micro-batches: its begin, the end of the next batch, and the slices of that batch.

Without PySpark: `spark_jobs/source/source.py` calls it in the process that Spark keeps as long as the query runs. For
every batch, in this order: `latest` decides its end from the watermarks; Spark keeps that in its checkpoint; `plan`
takes a pin and then the snapshot that it cuts into slices; tasks read; Spark calls `commit`; the pin is dropped. A
crash anywhere leaves a pin that runs out. The restart plans the same offsets again, from the files that hold them by
then.

This module also decides about losses: a topic that is gone, one that was created again under its name, offsets that
retention or DeleteRecords removed before they were read, an end that went back. Each raises `DataLossError`, or with
`failOnDataLoss` false is logged and skipped.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from metadata.contract.readers import TopicSnapshot, unknown_topic
from metadata.contract.store import MetadataStore
from metadata.contract.topics import Topic, UnknownTopicError, Watermarks
from runtime.clock import Clock
from runtime.logging import get_logger
from spark_jobs.scan.contract import (
    EARLIEST,
    LATEST,
    READ_COMMITTED,
    AtTimestamp,
    DataLossError,
    Edge,
    OffsetOutOfRangeError,
    ScanOptions,
    Slice,
    UnknownPartitionError,
)
from spark_jobs.source.metadata import MetadataThread
from spark_jobs.source.offsets import Document, StreamOffset, limited
from spark_jobs.source.options import SourceOptions
from spark_jobs.source.pins import Pin, Renewal, let_go, renew, take_pin

_log = get_logger(__name__)
SKIP = "failOnDataLoss=false goes on without the lost records"


class Planner(Protocol):
    """The interface to the scan room (`spark_jobs/source/scan.py`)."""

    def look_up(self, snapshot: TopicSnapshot, scan: ScanOptions) -> ScanOptions:
        """The scan with offsets in place of timestamps."""
        ...

    def slices(self, snapshot: TopicSnapshot, scan: ScanOptions) -> Sequence[Slice]: ...


@dataclass(frozen=True, slots=True)
class _Ends:
    topic: Topic
    log_starts: Mapping[int, int]
    ends: Mapping[int, int]


@dataclass(slots=True)
class _Planned:
    text: str
    end: Document
    pin: Pin
    slices: Sequence[Slice]


class TopicStream:
    """The stream of one query. It opens nothing before the first call, so a fresh one can be pickled."""

    def __init__(self, options: SourceOptions, metadata: MetadataThread, planner: Planner, clock: Clock) -> None:
        self._options, self._scan = options, options.scan
        self._metadata, self._planner, self._clock = metadata, planner, clock
        self._target: StreamOffset | None = None
        self._last_seen: Document | None = None
        self._planned: list[_Planned] = []
        self._renewal: Renewal | None = None

    # -- the position

    def initial(self) -> Document:
        """The begin of a query without a checkpoint. Raises UnknownTopicError, OffsetOutOfRangeError."""
        if isinstance(self._scan.starting, AtTimestamp):
            return self._initial_by_timestamp()
        now = self._now()
        starting = self._scan.starting
        offsets: dict[int, int] = {}
        for partition, end in now.ends.items():
            wanted = starting.get(partition, EARLIEST) if isinstance(starting, Mapping) else starting
            if isinstance(wanted, Edge):
                offsets[partition] = end if wanted is LATEST else now.log_starts[partition]
                continue
            if wanted > end:
                raise OffsetOutOfRangeError(
                    f"startingOffsets of topic {now.topic.name!r} partition {partition} is {wanted}, its end is {end}"
                )
            offsets[partition] = wanted
        if isinstance(starting, Mapping) and (unknown := sorted(set(starting) - set(now.ends))):
            raise self._no_partition(now.topic, unknown[0])
        return self._document(now.topic, offsets)

    def _initial_by_timestamp(self) -> Document:
        pin = self._pin()
        try:
            snapshot = self._metadata.call(lambda metadata: metadata.readers.topic_snapshot(self._scan.topic))
            starting = self._planner.look_up(snapshot, self._scan).starting
        finally:
            let_go(self._metadata, [pin])
        if not isinstance(starting, Mapping):
            raise TypeError(f"a timestamp was looked up as {starting!r}")
        return self._document(
            snapshot.topic, {at: offset for at, offset in starting.items() if isinstance(offset, int)}
        )

    def until_now(self) -> None:
        """From here on the stream ends at what exists at this moment (`availableNow`)."""
        now = self._now()
        self._target = StreamOffset(now.topic.name, now.topic.topic_id, now.ends)

    def latest(self, start: Document | None, offsets_max: int | None) -> Document:
        """The end of the next batch after `start`, or `start` itself if nothing is new. Raises DataLossError."""
        begin = StreamOffset.from_document(start, topic=self._scan.topic) if start is not None else None
        try:
            now = self._now()
        except UnknownTopicError as error:
            if start is None or begin is None:
                raise
            self._lost(f"topic {self._scan.topic!r} was deleted after it was read from", error.remedy)
            return start
        ends = self._up_to_target(now)
        self._last_seen = self._document(now.topic, now.ends)
        if begin is None:
            return self._document(now.topic, ends)
        starts = self._starts(begin, now, ends)
        chosen = limited(starts, ends, offsets_max) if offsets_max is not None else dict(ends)
        return self._document(now.topic, chosen)

    def last_seen(self) -> Document | None:
        """The newest known end, for the query's progress report."""
        return self._last_seen

    def _up_to_target(self, now: _Ends) -> Mapping[int, int]:
        target = self._target
        if target is None or target.topic_id != now.topic.topic_id:
            return now.ends
        return {at: min(end, target.next_offsets[at]) for at, end in now.ends.items() if at in target.next_offsets}

    def _starts(self, begin: StreamOffset, now: _Ends, ends: Mapping[int, int]) -> dict[int, int]:
        """The start of each partition in the next batch, in agreement with `plan`."""
        if begin.topic_id != now.topic.topic_id:
            self._lost_topic(begin)
            return {partition: now.log_starts[partition] for partition in ends}
        starts: dict[int, int] = {}
        for partition, end in ends.items():
            start = begin.next_offsets.get(partition, now.log_starts[partition])
            if start > now.ends[partition]:
                self._lost(
                    f"topic {now.topic.name!r} partition {partition} ends at {now.ends[partition]}, and was read up to"
                    f" {start} already",
                    "was the metadata store restored from a backup?",
                )
            if not self._scan.fail_on_data_loss:
                start = max(start, now.log_starts[partition])
            starts[partition] = min(start, max(end, now.ends[partition]))
        return starts

    def _now(self) -> _Ends:
        """The topic's present ends. Raises UnknownTopicError."""
        name = self._scan.topic

        async def look(metadata: MetadataStore) -> tuple[Topic, Mapping[int, Watermarks]]:
            topics = await metadata.readers.topics()
            found = next((topic for topic in topics if topic.name == name), None)
            if found is None:
                raise unknown_topic(name, [topic.name for topic in topics])
            marks = await metadata.agents.watermarks(found.partition_ids)
            if len(marks) < len(found.partition_ids):  # deleted between the two questions
                raise unknown_topic(name, [topic.name for topic in topics if topic is not found])
            return found, marks

        topic, marks = self._metadata.call(look)
        chosen = self._partitions(topic)
        by_number = {number: marks[topic.partition_ids[number]] for number in chosen}
        committed = self._scan.isolation == READ_COMMITTED
        return _Ends(
            topic,
            {number: each.log_start_offset for number, each in by_number.items()},
            {
                # The log start passes the last stable offset if DeleteRecords cuts into an open transaction.
                number: max(each.last_stable_offset, each.log_start_offset) if committed else each.high_watermark
                for number, each in by_number.items()
            },
        )

    def _partitions(self, topic: Topic) -> Sequence[int]:
        wanted = self._scan.partitions
        if wanted is None:
            return range(len(topic.partition_ids))
        unknown = [number for number in wanted if number >= len(topic.partition_ids)]
        if unknown:
            raise self._no_partition(topic, unknown[0])
        return wanted

    def _no_partition(self, topic: Topic, number: int) -> UnknownPartitionError:
        return UnknownPartitionError(
            f"topic {topic.name!r} has no partition {number}", remedy=f"it has {len(topic.partition_ids)}, from 0 on"
        )

    def _document(self, topic: Topic, offsets: Mapping[int, int]) -> Document:
        return StreamOffset(topic.name, topic.topic_id, offsets).as_document()

    # -- the slices of a batch

    def plan(self, start: Document, end: Document) -> Sequence[Slice]:
        """The slices from `start` up to `end`, pinned until `commit` or `stop`. Raises DataLossError."""
        text = json.dumps([start, end])
        for planned in self._planned:  # the same batch again: a second action in foreachBatch
            if planned.text == text:
                return planned.slices
        begin = StreamOffset.from_document(start, topic=self._scan.topic)
        until = StreamOffset.from_document(end, topic=self._scan.topic)
        if begin == until:
            return []
        planned = _Planned(text, end, self._pin(), [])
        self._planned.append(planned)  # from now on it is renewed
        try:
            self._renew_from_now_on()
            planned.slices = self._slices(begin, until)
        except BaseException:  # a repeated call must plan it again: nothing may say that this batch is empty
            self._planned.remove(planned)
            let_go(self._metadata, [planned.pin])
            raise
        return planned.slices

    def _slices(self, begin: StreamOffset, until: StreamOffset) -> Sequence[Slice]:
        try:
            snapshot = self._metadata.call(lambda metadata: metadata.readers.topic_snapshot(self._scan.topic))
        except UnknownTopicError as error:
            self._lost(f"topic {self._scan.topic!r} was deleted before this batch of it was read", error.remedy)
            return []
        if snapshot.topic.topic_id != until.topic_id:
            self._lost_topic(until)
            return []
        is_same = begin.topic_id == until.topic_id
        starting: dict[int, int] = {}
        ending: dict[int, int] = {}
        for partition, last in until.next_offsets.items():
            first = begin.next_offsets.get(partition) if is_same else None
            if first is None:
                first = snapshot.partitions[partition].log_start_offset
            if first < last:
                starting[partition], ending[partition] = first, last
        if not ending:
            return []
        scan = replace(self._scan, partitions=tuple(sorted(ending)), starting=starting, ending=ending)
        return self._planner.slices(snapshot, scan)

    def commit(self, end: Document) -> None:
        """Spark is done with everything up to `end`: drop the pins for it."""
        done = next((at for at, planned in enumerate(self._planned) if planned.end == end), None)
        if done is not None:
            let_go(self._metadata, [planned.pin for planned in self._planned[: done + 1]])
            # Earlier ones too: a commit covers everything up to its end.
            del self._planned[: done + 1]

    def stop(self) -> None:
        if self._renewal is not None:
            self._renewal.stop()
            self._renewal = None
        let_go(self._metadata, [planned.pin for planned in self._planned])
        self._planned = []
        self._metadata.close()

    # -- pins

    def _pin(self) -> Pin:
        holder = f"spark stream of {self._scan.topic}"
        return take_pin(self._metadata, holder, ttl_ms=self._options.pin_ttl_ms, clock=self._clock)

    def _renew_from_now_on(self) -> None:
        if self._renewal is None:
            every_ms = self._planned[0].pin.renew_every_ms
            self._renewal = Renewal(self._renew_all, first_ms=every_ms, every_ms=every_ms)
            self._renewal.__enter__()

    def _renew_all(self) -> bool:
        """Always True: the task whose file is gone notices a pin that ran out, and plans again."""
        # A copy: this runs in the renewal's thread, and `plan` and `commit` change the list meanwhile.
        for planned in list(self._planned):
            renew(self._metadata, planned.pin)
        return True

    # -- losses

    def _lost_topic(self, offset: StreamOffset) -> None:
        self._lost(
            f"topic {self._scan.topic!r} was deleted and created again: the checkpoint's offsets are of its predecessor"
            f" ({offset.topic_id})",
            "start with a new checkpoint",
        )

    def _lost(self, message: str, remedy: str) -> None:
        if self._scan.fail_on_data_loss:
            raise DataLossError(message, remedy="; ".join(filter(None, (remedy, SKIP))))
        _log.warning("data lost", what=message)
