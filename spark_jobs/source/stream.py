"""Topics as a stream of micro-batches: its begin, the end of the next batch, and the tasks of that batch.

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
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from metadata.contract.readers import TopicSnapshot, unknown_topic
from metadata.contract.store import MetadataStore
from metadata.contract.topics import Topic, UnknownTopicError, Watermarks
from runtime.clock import Clock
from runtime.errors import BugError
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
from spark_jobs.source.offsets import Document, StreamOffset, TopicOffset, limited
from spark_jobs.source.options import SourceOptions
from spark_jobs.source.pins import Pin, Renewal, let_go, renew, take_pin
from spark_jobs.source.scan import SliceTask, TopicScan, snapshot_of, topics_of

_log = get_logger(__name__)
SKIP = "failOnDataLoss=false goes on without the lost records"


class Planner(Protocol):
    """The interface to the scan room (`spark_jobs/source/scan.py`)."""

    def look_up(self, snapshot: TopicSnapshot, scan: ScanOptions) -> ScanOptions:
        """The scan with offsets in place of timestamps."""
        ...

    def slices(self, scans: Sequence[TopicScan]) -> Sequence[Sequence[Slice]]: ...


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
    tasks: Sequence[SliceTask]


class TopicStream:
    """The stream of one query. It opens nothing before the first call, so a fresh one can be pickled."""

    def __init__(self, options: SourceOptions, metadata: MetadataThread, planner: Planner, clock: Clock) -> None:
        self._options, self._choice = options, options.topics
        self._metadata, self._planner, self._clock = metadata, planner, clock
        self._target: StreamOffset | None = None
        self._last_seen: Document | None = None
        self._planned: list[_Planned] = []
        self._renewal: Renewal | None = None

    # -- the position

    def initial(self) -> Document:
        """The begin of a query without a checkpoint. Raises UnknownTopicError, OffsetOutOfRangeError,
        SourceOptionError.
        """
        if isinstance(self._options.scan.starting, AtTimestamp):
            return self._initial_by_timestamp()
        there = self._now(known=())
        self._options.check_offsets(there)
        found = {topic: self._initial_of(now) for topic, now in there.items()}
        return StreamOffset(found).as_document()

    def _initial_of(self, now: _Ends) -> TopicOffset:
        starting = self._options.scan_of(now.topic.name).starting
        offsets: dict[int, int] = {}
        for partition, end in now.ends.items():
            wanted = starting.get(partition, EARLIEST) if isinstance(starting, Mapping) else starting
            if isinstance(wanted, Edge):
                offsets[partition] = end if wanted is LATEST else now.log_starts[partition]
            elif isinstance(wanted, AtTimestamp):
                raise BugError("times are looked up elsewhere")
            elif wanted > end:
                raise OffsetOutOfRangeError(
                    f"startingOffsets of topic {now.topic.name!r} partition {partition} is {wanted}, its end is {end}"
                )
            else:
                offsets[partition] = wanted
        if isinstance(starting, Mapping) and (unknown := sorted(set(starting) - set(now.ends))):
            raise self._no_partition(now.topic, unknown[0])
        return TopicOffset(now.topic.topic_id, offsets)

    def _initial_by_timestamp(self) -> Document:
        pin = self._pin()
        found: dict[str, TopicOffset] = {}
        try:
            for topic in topics_of(self._options, self._metadata):
                snapshot = snapshot_of(topic, self._options, self._metadata)
                if snapshot is None:
                    continue
                starting = self._planner.look_up(snapshot, self._options.scan_of(topic)).starting
                if not isinstance(starting, Mapping):
                    raise BugError(f"a timestamp was looked up as {starting!r}")
                offsets = {at: offset for at, offset in starting.items() if isinstance(offset, int)}
                found[topic] = TopicOffset(snapshot.topic.topic_id, offsets)
        finally:
            let_go(self._metadata, [pin])
        return StreamOffset(found).as_document()

    def until_now(self) -> None:
        """From here on the stream ends at what exists at this moment (`availableNow`)."""
        self._target = self._position(self._now(known=()))

    def latest(self, start: Document | None, offsets_max: int | None) -> Document:
        """The end of the next batch after `start`, or `start` itself if nothing is new. Raises DataLossError."""
        begin = StreamOffset({}) if start is None else StreamOffset.from_document(start, choice=self._choice)
        now = self._now(known=begin.topics)
        self._last_seen = self._position(now).as_document()
        for topic in sorted(begin.topics.keys() - now.keys()):
            self._lost(
                f"topic {topic!r} was deleted after it was read from",
                "start with a new checkpoint, without it",
            )
        found = dict(begin.topics)  # a topic that is not read on stays where it is
        starts: dict[tuple[str, int], int] = {}  # by topic and partition
        ends: dict[tuple[str, int], int] = {}
        for topic, there in now.items():
            first = begin.topics.get(topic)
            if first is not None and first.topic_id != there.topic.topic_id:
                self._lost_topic(topic, first)
                first = None
            of_topic = self._up_to_target(there)
            if of_topic is None:
                continue
            before = self._starts(first, there, of_topic)
            starts |= {(topic, partition): offset for partition, offset in before.items()}
            ends |= {(topic, partition): offset for partition, offset in of_topic.items()}
            found[topic] = TopicOffset(there.topic.topic_id, of_topic)
        if start is not None and offsets_max is not None:
            chosen = limited(starts, ends, offsets_max)
            for topic in {topic for topic, _ in chosen}:
                of_topic = {partition: offset for (name, partition), offset in chosen.items() if name == topic}
                found[topic] = replace(found[topic], next_offsets=of_topic)
        return StreamOffset(found).as_document()

    def last_seen(self) -> Document | None:
        """The newest known end, for the query's progress report."""
        return self._last_seen

    def _up_to_target(self, now: _Ends) -> Mapping[int, int] | None:
        """None for a topic that is newer than the moment at which the stream ends."""
        if self._target is None:
            return now.ends
        target = self._target.topics.get(now.topic.name)
        if target is None or target.topic_id != now.topic.topic_id:
            return None
        return {at: min(end, target.next_offsets[at]) for at, end in now.ends.items() if at in target.next_offsets}

    def _starts(self, begin: TopicOffset | None, now: _Ends, ends: Mapping[int, int]) -> dict[int, int]:
        """The start of each partition in the next batch, in agreement with `plan`. A new topic has its log start, and
        no `begin`.
        """
        if begin is None:
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
            if not self._options.scan.fail_on_data_loss:
                start = max(start, now.log_starts[partition])
            starts[partition] = min(start, max(end, now.ends[partition]))
        return starts

    def _now(self, known: Collection[str]) -> Mapping[str, _Ends]:
        """The present ends of the chosen topics that exist. Raises UnknownTopicError for a name that does not, unless
        it is `known`."""

        async def look(metadata: MetadataStore) -> tuple[Sequence[Topic], Mapping[int, Watermarks]]:
            topics = await metadata.readers.topics()
            names = set(self._choice.among(topic.name for topic in topics))
            chosen = [topic for topic in topics if topic.name in names]
            marks = await metadata.agents.watermarks([one for topic in chosen for one in topic.partition_ids])
            # A topic that was deleted between the two questions lacks some.
            chosen = [topic for topic in chosen if all(one in marks for one in topic.partition_ids)]
            there = [topic.name for topic in chosen]
            for name in self._choice.names:
                if name not in there and name not in known:
                    raise unknown_topic(name, there or [topic.name for topic in topics if topic.name != name])
            return chosen, marks

        topics, marks = self._metadata.call(look)
        return {topic.name: self._ends(topic, marks) for topic in topics}

    def _ends(self, topic: Topic, marks: Mapping[int, Watermarks]) -> _Ends:
        by_number = {number: marks[topic.partition_ids[number]] for number in self._partitions(topic)}
        committed = self._options.scan.isolation == READ_COMMITTED
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
        wanted = self._choice.partitions.get(topic.name)
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

    def _position(self, now: Mapping[str, _Ends]) -> StreamOffset:
        return StreamOffset({name: TopicOffset(each.topic.topic_id, each.ends) for name, each in now.items()})

    def _snapshot(self, topic: str) -> TopicSnapshot:
        return self._metadata.call(lambda metadata: metadata.readers.topic_snapshot(topic))

    # -- the slices of a batch

    def plan(self, start: Document, end: Document) -> Sequence[SliceTask]:
        """The tasks from `start` up to `end`, pinned until `commit` or `stop`. Raises DataLossError."""
        text = json.dumps([start, end])
        for planned in self._planned:  # the same batch again: a second action in foreachBatch
            if planned.text == text:
                return planned.tasks
        begin = StreamOffset.from_document(start, choice=self._choice)
        until = StreamOffset.from_document(end, choice=self._choice)
        if begin == until:
            return []
        planned = _Planned(text, end, self._pin(), [])
        self._planned.append(planned)  # from now on it is renewed
        try:
            self._renew_from_now_on()
            planned.tasks = self._tasks(begin, until)
        except BaseException:  # a repeated call must plan it again: nothing may say that this batch is empty
            self._planned.remove(planned)
            let_go(self._metadata, [planned.pin])
            raise
        return planned.tasks

    def _tasks(self, begin: StreamOffset, until: StreamOffset) -> Sequence[SliceTask]:
        scans: list[TopicScan] = []
        for topic, last in until.topics.items():
            first = begin.topics.get(topic)
            scan = self._scan_between(topic, first, last) if first != last else None
            if scan is not None:
                scans.append(scan)
        return [
            SliceTask(slice=one.to_json(), topic=each.scan.topic, topic_id=str(each.snapshot.topic.topic_id))
            for each, slices in zip(scans, self._planner.slices(scans), strict=True)
            for one in slices
        ]

    def _scan_between(self, topic: str, begin: TopicOffset | None, until: TopicOffset) -> TopicScan | None:
        try:
            snapshot = self._snapshot(topic)
        except UnknownTopicError as error:
            self._lost(f"topic {topic!r} was deleted before this batch of it was read", error.remedy)
            return None
        if snapshot.topic.topic_id != until.topic_id:
            self._lost_topic(topic, until)
            return None
        before: Mapping[int, int] = begin.next_offsets if begin is not None and begin.topic_id == until.topic_id else {}
        starting: dict[int, int] = {}
        ending: dict[int, int] = {}
        for partition, last in until.next_offsets.items():
            first = before.get(partition)
            if first is None:
                first = snapshot.partitions[partition].log_start_offset
            if first < last:
                starting[partition], ending[partition] = first, last
        if not ending:
            return None
        scan = self._options.scan_of(topic)
        scan = replace(scan, partitions=tuple(sorted(ending)), starting=starting, ending=ending)
        return TopicScan(snapshot, scan)

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
        holder = f"spark stream of {self._choice.label}"
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

    def _lost_topic(self, topic: str, offset: TopicOffset) -> None:
        self._lost(
            f"topic {topic!r} was deleted and created again: the checkpoint's offsets are of its predecessor"
            f" ({offset.topic_id})",
            "start with a new checkpoint",
        )

    def _lost(self, message: str, remedy: str) -> None:
        if self._options.scan.fail_on_data_loss:
            raise DataLossError(message, remedy="; ".join(filter(None, (remedy, SKIP))))
        _log.warning("data lost", what=message)
