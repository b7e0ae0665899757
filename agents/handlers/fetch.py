"""Fetch 4-12 (KIP-74 limits, KIP-227 sessions declined): whole batches from memory or the store, with their offsets.

Sessions: every answer says session 0, "no session", which is always legal; a request that names one gets
FETCH_SESSION_ID_NOT_FOUND and the client falls back to full fetches. A request waits until `min_bytes` are there or
`max_wait_ms` have passed, parked in memory; records come by the follower, so a caught-up consumer costs the store
nothing.

An offset outside what we know is out of range only if a fresh read of the watermarks says so: the agent's view may be
late. Above our end but not above the fresh one means: wait, another agent's commit is on its way here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from agents.answers import HeldAnswer
from agents.broker import Broker
from agents.log_index import PartitionLog
from agents.read.budget import Release
from agents.read.reader import Taken, Want
from metadata.service import MetadataUnavailableError
from wire.api import RequestHeader
from wire.error_codes import ErrorCode
from wire.messages.fetch import FetchableTopicResponse, FetchPartition, FetchRequest, FetchResponse, PartitionData

READ_COMMITTED = 1
LEADER_EPOCH = 0


@dataclass(slots=True)
class _Part:
    """One partition of the request on its way to an answer."""

    asked: FetchPartition
    answer: PartitionData
    partition_id: int = -1
    log: PartitionLog | None = None

    def fail(self, error: ErrorCode) -> None:
        self.answer.error_code = error
        self.log = None


async def handle(broker: Broker, header: RequestHeader, request: FetchRequest) -> FetchResponse | HeldAnswer:
    if request.session_id != 0:
        return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    deadline_ms = broker.clock.monotonic_ms() + min(max(request.max_wait_ms, 0), broker.settings.fetch_max_wait_ms)
    response, parts = _resolve(broker, request)
    await _check_ranges(broker, parts)
    bytes_max = min(max(request.max_bytes, 0), broker.settings.fetch_max_bytes)
    await _wait_for_bytes(broker, parts, min(request.min_bytes, bytes_max), deadline_ms)
    release = await _read(broker, parts, bytes_max, committed_only=request.isolation_level == READ_COMMITTED)
    return HeldAnswer(response, release)


def _resolve(broker: Broker, request: FetchRequest) -> tuple[FetchResponse, list[_Part]]:
    """The answer's skeleton, in the request's order, and the same partitions in one list."""
    parts: list[_Part] = []
    response = FetchResponse()
    for asked_topic in request.topics:
        topic = broker.catalog.topic(asked_topic.topic)
        answers: list[PartitionData] = []
        for asked in asked_topic.partitions:
            part = _Part(asked, PartitionData(partition_index=asked.partition, high_watermark=-1, records=b""))
            if topic is None or not 0 <= asked.partition < len(topic.partition_ids):
                part.fail(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            elif asked.current_leader_epoch > LEADER_EPOCH:
                part.fail(ErrorCode.UNKNOWN_LEADER_EPOCH)
            else:
                part.partition_id = topic.partition_ids[asked.partition]
                part.log = broker.index.partition(part.partition_id)
                if part.log is None:
                    part.fail(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            parts.append(part)
            answers.append(part.answer)
        response.responses.append(FetchableTopicResponse(topic=asked_topic.topic, partitions=answers))
    return response, parts


async def _check_ranges(broker: Broker, parts: Sequence[_Part]) -> None:
    """Refuse offsets that are out of range by the store's own word."""
    doubtful = [
        part for part in parts if part.log is not None and not part.log.start <= part.asked.fetch_offset <= part.log.end
    ]
    if not doubtful:
        return
    try:
        fresh = await broker.fresh.get([part.partition_id for part in doubtful])
    except MetadataUnavailableError:
        # Nobody can say; an empty answer makes the client ask again, an error would make it jump.
        return
    for part in doubtful:
        watermarks = fresh.get(part.partition_id)
        if watermarks is None:
            part.fail(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        elif not watermarks.log_start_offset <= part.asked.fetch_offset <= watermarks.high_watermark:
            part.fail(ErrorCode.OFFSET_OUT_OF_RANGE)


async def _wait_for_bytes(broker: Broker, parts: Sequence[_Part], bytes_min: int, deadline_ms: float) -> None:
    waiting = [part.partition_id for part in parts if part.log is not None]
    while waiting and not any(part.answer.error_code for part in parts):
        if _bytes_at_hand(parts, bytes_min) >= bytes_min:
            return
        left_ms = deadline_ms - broker.clock.monotonic_ms()
        if left_ms <= 0 or not await broker.arrivals.wait(waiting, left_ms):
            return
        # Looked up again: what woke us may be the topic's deletion, or an index that was loaded anew.
        for part in parts:
            if part.log is not None:
                part.log = broker.index.partition(part.partition_id)
                if part.log is None:
                    part.fail(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def _bytes_at_hand(parts: Sequence[_Part], enough: int) -> int:
    total = 0
    for part in parts:
        if part.log is not None:
            total += part.log.bytes_from(part.asked.fetch_offset, min(part.asked.partition_max_bytes, enough))
            if total >= enough:
                break
    return total


async def _read(broker: Broker, parts: Sequence[_Part], bytes_max: int, *, committed_only: bool) -> Release:
    readable: list[_Part] = []
    caught_up: list[int] = []
    for part in parts:
        if part.log is None:
            continue
        # Looked up again: the topic may have been deleted, or the index loaded anew, while we waited.
        log = part.log = broker.index.partition(part.partition_id)
        if log is None:
            part.fail(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            continue
        # Taken before the bytes are: an answer may say less than there is by now, never more than it can prove.
        part.answer.high_watermark = part.answer.last_stable_offset = log.end
        part.answer.log_start_offset = log.start
        part.answer.aborted_transactions = [] if committed_only else None
        if part.asked.fetch_offset < log.end:
            readable.append(part)
        else:
            caught_up.append(part.partition_id)
    wants = [Want(part.partition_id, part.asked.fetch_offset, part.asked.partition_max_bytes) for part in readable]
    news = partial(broker.arrivals.wait, caught_up, broker.settings.fetch_max_wait_ms) if caught_up else None
    reading = await broker.reader.read(wants, bytes_max=bytes_max, news=news)
    for part, taken in zip(readable, reading.taken, strict=True):
        _fill_records(part, taken)
    return reading.release


def _fill_records(part: _Part, taken: Taken) -> None:
    if taken.error is not ErrorCode.NONE:
        part.answer.error_code = taken.error
    if taken.error is ErrorCode.OFFSET_OUT_OF_RANGE:
        # The log start has moved past it while we looked.
        part.answer.high_watermark = part.answer.last_stable_offset = part.answer.log_start_offset = -1
    part.answer.records = taken.buffers
