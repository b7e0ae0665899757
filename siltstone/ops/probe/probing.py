"""One round trip after the other: a record to each partition of a small topic, and back.

A round trip is tried once, because its failure is what is asked for; only an agent that stops and sends its clients
away is followed to another, as every client does. After a failure the next round trip begins at the bootstrap addresses
again. A record whose outcome is not known (no answer) is not looked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from runtime.errors import BadInputError, SiltstoneError
from runtime.runtime import Runtime
from siltstone.kafka.client import EARLIEST, LATEST, HungAgentError, KafkaClient, KafkaError
from siltstone.kafka.records import (
    DamagedBatchError,
    FetchedPartition,
    batches_of,
    fetch_partitions,
    offsets_at,
    produce_batches,
)
from siltstone.kafka.retrying import RetryingClient
from siltstone.kafka.security.remedies import of_probe
from siltstone.ops.probe.records import SEE_LOST, Expected, LostRecordError, Outcome, Sent, decoded
from wire.error_codes import ErrorCode
from wire.records import build_batch

TOPIC = "siltstone-probe"
CONFIGS: Mapping[str, str] = {"retention.ms": "3600000", "cleanup.policy": "delete"}
"""The configs of a topic that the probe creates."""
PARTITIONS_MAX = 100
SAMPLE_RECORDS = 100
"""Looked at, at the beginning and at the end of a partition, before the probe writes to a topic that it finds."""
MAX_WAIT_MS = 500
SEE_FAILING = "docs/operations/runbook.md, SiltstoneProbeFailing"
LEAVE_IT = "let nobody else delete it; the next round trip begins with the topic of now"
RETRY_MS = 50
"""Before an agent is asked again that does not know of the record yet."""
_OUT_OF_RANGE = int(ErrorCode.OFFSET_OUT_OF_RANGE)
_DENIED = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
_TIMED_OUT = int(ErrorCode.REQUEST_TIMED_OUT)


class ForeignTopicError(BadInputError):
    """The topic is not of the probe."""


class ReplacedTopicError(SiltstoneError):
    """Records were acknowledged in a topic that is not there any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTrip:
    outcome: Outcome
    sequence: int
    took_ms: float
    error: SiltstoneError | None


class Prober:
    """One process that probes. Its round trips must not overlap."""

    def __init__(self, bootstrap: str, topic: str, *, timeout_ms: float, runtime: Runtime) -> None:
        self._bootstrap, self._topic, self._timeout_ms = bootstrap, topic, timeout_ms
        self._clock = runtime.clock
        self._id = str(runtime.ids.uuid7(runtime.clock.wall_ms()))
        self._sequence = 0
        self._client: RetryingClient | None = None
        self._partitions = 0
        self._topic_id: UUID | None = None
        self._before: dict[int, tuple[int, Sent]] = {}
        """By partition, the last record that was acknowledged, and its offset."""

    async def round_trip(self) -> RoundTrip:
        """Raises ForeignTopicError."""
        self._sequence += 1
        began_ms = self._clock.monotonic_ms()
        error: SiltstoneError | None = None
        try:
            async with asyncio.timeout(self._timeout_ms / 1000):
                client = self._client or await self._open()
                began_ms = self._clock.monotonic_ms()  # the first connection is no part of it
                await self._there_and_back(client)
        except ForeignTopicError:
            raise
        except TimeoutError:
            error = SiltstoneError(f"not over within {self._timeout_ms / 1000:g} s", remedy=SEE_FAILING)
            outcome = Outcome.LATE
        except DamagedBatchError as damaged:
            damaged.remedy = damaged.remedy or SEE_LOST
            error, outcome = damaged, Outcome.LOST
        except LostRecordError as lost:
            replaced = await self._replaced()
            error, outcome = (lost, Outcome.LOST) if replaced is None else (replaced, Outcome.REPLACED)
        except SiltstoneError as failure:
            is_late = isinstance(failure, HungAgentError) or getattr(failure, "code", None) == _TIMED_OUT
            is_denied = getattr(failure, "code", None) == _DENIED
            failure.remedy = of_probe(self._topic) if is_denied else failure.remedy or SEE_FAILING
            error, outcome = failure, Outcome.LATE if is_late else Outcome.FAILED
        else:
            outcome = Outcome.OK
        if outcome in (Outcome.LOST, Outcome.REPLACED):
            self._before = {}  # it is told once
        if error is not None:
            await self.close()
        took_ms = self._clock.monotonic_ms() - began_ms
        return RoundTrip(outcome=outcome, sequence=self._sequence, took_ms=took_ms, error=error)

    async def _replaced(self) -> ReplacedTopicError | None:
        """None if the topic is the one that the probe began with, or if no agent tells."""
        said = f"the topic {self._topic} was deleted while the probe wrote to it"
        try:
            async with asyncio.timeout(self._timeout_ms / 1000):
                client = self._client or await RetryingClient(self._bootstrap, self._clock).__aenter__()
                self._client = client
                topic = await client.run_once(lambda inner: inner.topic(self._topic))
        except KafkaError as error:
            return ReplacedTopicError(said, remedy=LEAVE_IT) if error.name == "UNKNOWN_TOPIC_OR_PARTITION" else None
        except (SiltstoneError, TimeoutError):
            return None
        if topic.topic_id == self._topic_id:
            return None
        return ReplacedTopicError(f"{said}, and made again", remedy=LEAVE_IT)

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.__aexit__(None, None, None)

    async def _open(self) -> RetryingClient:
        client = await RetryingClient(self._bootstrap, self._clock).__aenter__()
        try:
            await client.run_once(self._find_topic)
        except BaseException:
            await client.__aexit__(None, None, None)
            raise
        self._client = client
        return client

    async def _find_topic(self, client: KafkaClient) -> None:
        try:
            topic = await client.topic(self._topic)
        except KafkaError as error:
            if error.name != "UNKNOWN_TOPIC_OR_PARTITION":
                raise
            await client.create_topic(self._topic, partitions=1, configs=CONFIGS)
            topic = await client.topic(self._topic)
        else:
            if topic.topic_id != self._topic_id:
                await self._check_own(client, len(topic.partitions))
        if topic.topic_id != self._topic_id:
            self._before = {}  # what was acknowledged went with the topic before
        self._topic_id, self._partitions = topic.topic_id, len(topic.partitions)

    async def _check_own(self, client: KafkaClient, partitions: int) -> None:
        """Raises ForeignTopicError."""
        if partitions > PARTITIONS_MAX:
            raise self._foreign(f"it has {partitions:,} partitions")
        places = [(self._topic, number) for number in range(partitions)]
        starts = await offsets_at(client, dict.fromkeys(places, EARLIEST))
        ends = await offsets_at(client, dict.fromkeys(places, LATEST))
        for place in places:
            start, end = starts[place], ends[place]
            for told in (start, end):
                if isinstance(told, KafkaError):
                    raise told
            assert isinstance(start, int) and isinstance(end, int)
            for offset in sorted({start, max(start, end - SAMPLE_RECORDS)}) if start < end else ():
                await self._check_records(client, place[1], offset)

    async def _check_records(self, client: KafkaClient, partition: int, offset: int) -> None:
        [fetched] = await fetch_partitions(client, {(self._topic, partition): offset}, max_wait_ms=0)
        _check(fetched)
        looked_at = 0
        for records, _ in batches_of(fetched, offset):
            for each in records:
                if decoded(each.value) is None:
                    raise self._foreign(f"the record at offset {each.offset} of partition {partition} is of no probe")
            looked_at += len(records)
            if looked_at >= SAMPLE_RECORDS:
                return

    def _foreign(self, why: str) -> ForeignTopicError:
        return ForeignTopicError(
            f"the topic {self._topic} is not the probe's: {why}; nothing was written to it",
            remedy="name another topic with --topic; the probe creates one that is not there",
        )

    async def _there_and_back(self, client: RetryingClient) -> None:
        now_ms = self._clock.wall_ms()
        sent = {number: Sent(self._id, self._sequence, number, now_ms) for number in range(self._partitions)}

        async def produce(inner: KafkaClient) -> Mapping[int, int]:
            batches = {number: build_batch([each.encoded()]) for number, each in sent.items()}
            results = await produce_batches(inner, self._topic, batches, acks=-1)
            for number, result in results.items():
                if result.error_code:
                    raise KafkaError(result.error_code, f"{self._topic}-{number}", result.message or None)
            return {number: result.base_offset for number, result in results.items()}

        offsets = await client.run_once(produce)
        expected: dict[int, Expected] = {}
        for number, offset in offsets.items():
            expected[number] = Expected(f"{self._topic}-{number}", offset, sent[number], self._before.get(number))
            self._before[number] = offset, sent[number]

        async def fetch(inner: KafkaClient) -> bool:
            wanted = {(self._topic, number): each.position for number, each in expected.items() if not each.is_done}
            fetched = await fetch_partitions(inner, wanted, max_wait_ms=MAX_WAIT_MS)
            brought = [_take(expected[each.partition], each) for each in fetched]
            return any(brought)

        while not all(each.is_done for each in expected.values()):
            if not await client.run_once(fetch):
                await self._clock.sleep_ms(RETRY_MS)


def _take(expected: Expected, fetched: FetchedPartition) -> bool:
    """Whether it brought anything. Raises LostRecordError, DamagedBatchError, KafkaError."""
    position = expected.position
    if fetched.error_code == _OUT_OF_RANGE:
        expected.deleted()
    else:
        _check(fetched)
        for records, next_offset in batches_of(fetched, position):
            expected.read({each.offset: each for each in records}, next_offset)
    return expected.position > position


def _check(fetched: FetchedPartition) -> None:
    if fetched.error_code:
        raise KafkaError(fetched.error_code, f"{fetched.topic}-{fetched.partition}")
