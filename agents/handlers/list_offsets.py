"""ListOffsets 0-9: latest (-1), earliest (-2), largest timestamp (-3), the edges of tiers (-4, -5), or by timestamp.

There is one tier, and Kafka would call all of it local: the earliest local offset (-4, v8) is the log start, and there
is no latest tiered one (-5, v9).

Latest and earliest come from a fresh read of the watermarks, never from memory. To readers of committed records the
latest is the last stable offset, and what lies at or above it is not found. By timestamp, Kafka's rule is by
record, not by batch: the first record in offset order whose timestamp is at or above the requested one. A request has a
budget for that; past it, headers of batches answer (`agents/read/timestamps/budget.py`). v0 answers a list.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agents.broker import Broker
from agents.read.timestamps.budget import LookUpBudget
from agents.read.timestamps.search import TIMESTAMP_ERRORS
from agents.read.timestamps.walk import TimestampedOffset
from agents.security.rights import allowed_in_turns
from agents.topics.present import look_for
from agents.yielding import LoopYielder
from metadata.contract.errors import MetadataUnavailableError
from metadata.contract.topics import Watermarks
from runtime.logging import get_logger
from security.acls.values import Operation, ResourceType
from wire.api import RequestHeader
from wire.error_codes import ErrorCode
from wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
)

_log = get_logger(__name__)

READ_COMMITTED = 1
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5
_SINCE_VERSION = {LATEST: 0, EARLIEST: 0, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9}
SEE_PRESENT_MS = 5_000.0
"""How long the look-ups by timestamp of one request wait until this agent has caught up with the store."""
LEADER_EPOCH = 0
"""As in Fetch and Metadata: one epoch everywhere, because no replica can diverge."""


@dataclass(frozen=True, slots=True)
class _Asking:
    """One request. Its look-ups by timestamp share a time and a budget: a client must not wait for each partition in
    turn."""

    version: int
    committed_only: bool
    fresh: Mapping[int, Watermarks] | None
    """None: the store does not answer."""
    present_by_ms: float
    budget: LookUpBudget


async def handle(broker: Broker, header: RequestHeader, request: ListOffsetsRequest) -> ListOffsetsResponse:
    rights = broker.rights()
    names = {topic.name for topic in request.topics}
    allowed = await allowed_in_turns(rights, Operation.DESCRIBE, ResourceType.TOPIC, names)
    # A client may know a new topic from another agent, and some clients do not ask again.
    asked = (
        (topic.name, part.partition_index)
        for topic in request.topics
        if topic.name in allowed
        for part in topic.partitions
    )
    seen = await look_for(broker, asked)
    ids = await _partition_ids(broker, [topic for topic in request.topics if topic.name in allowed])
    try:
        fresh = await broker.fresh.get(list(ids.values()))
    except MetadataUnavailableError:
        fresh = None
    asking = _Asking(
        version=header.api_version,
        committed_only=request.isolation_level == READ_COMMITTED,
        fresh=fresh,
        present_by_ms=broker.runtime.clock.monotonic_ms() + SEE_PRESENT_MS,
        budget=LookUpBudget(),
    )
    asked_times = Counter((topic.name, part.partition_index) for topic in request.topics for part in topic.partitions)
    topics: list[ListOffsetsTopicResponse] = []
    yielder = LoopYielder()
    async for topic in yielder.through(request.topics):
        answers: list[ListOffsetsPartitionResponse] = []
        async for part in yielder.through(topic.partitions):
            place = (topic.name, part.partition_index)
            if topic.name not in allowed:
                answers.append(_failed(part, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
            elif asked_times[place] > 1:
                answers.append(_failed(part, ErrorCode.INVALID_REQUEST))
            else:
                partition_id = ids.get(place)
                if partition_id is None and not seen:
                    answers.append(_failed(part, ErrorCode.LEADER_NOT_AVAILABLE))
                    continue
                answers.append(await _answer(broker, part, partition_id, asking))
        topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=answers))
    return ListOffsetsResponse(topics=topics)


async def _partition_ids(broker: Broker, topics: Sequence[ListOffsetsTopic]) -> dict[tuple[str, int], int]:
    ids: dict[tuple[str, int], int] = {}
    yielder = LoopYielder()
    async for asked in yielder.through(topics):
        topic = broker.topic_cache.topic(asked.name)
        async for part in yielder.through(asked.partitions):
            if topic is not None and 0 <= part.partition_index < len(topic.partition_ids):
                ids[asked.name, part.partition_index] = topic.partition_ids[part.partition_index]
    return ids


async def _answer(
    broker: Broker, asked: ListOffsetsPartition, partition_id: int | None, asking: _Asking
) -> ListOffsetsPartitionResponse:
    if partition_id is None:
        return _failed(asked, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    # Other negative numbers are unsupported too: `version + 1` refuses them in every version.
    if asked.timestamp < 0 and asking.version < _SINCE_VERSION.get(asked.timestamp, asking.version + 1):
        return _failed(asked, ErrorCode.UNSUPPORTED_VERSION)
    if asked.current_leader_epoch > LEADER_EPOCH:
        return _failed(asked, ErrorCode.UNKNOWN_LEADER_EPOCH)
    # After the checks that need no store: their answers are the same whether it is there or not.
    if asking.fresh is None:
        return _failed(asked, ErrorCode.LEADER_NOT_AVAILABLE)
    watermarks = asking.fresh.get(partition_id)
    if watermarks is None:
        return _failed(asked, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    end = watermarks.last_stable_offset if asking.committed_only else watermarks.high_watermark
    if asked.timestamp == LATEST:
        found = TimestampedOffset(end, -1)
    elif asked.timestamp in (EARLIEST, EARLIEST_LOCAL):
        found = TimestampedOffset(watermarks.log_start_offset, -1)
    elif asked.timestamp == LATEST_TIERED:
        found = None
    else:
        try:
            found = await _by_timestamp(broker, asked.timestamp, watermarks, asking)
        except TIMESTAMP_ERRORS as error:
            _log.error("no offset for timestamp", partition_id=partition_id, error=str(error))
            return _failed(asked, ErrorCode.KAFKA_STORAGE_ERROR)
        except (TimeoutError, MetadataUnavailableError):
            return _failed(asked, ErrorCode.LEADER_NOT_AVAILABLE)
        # Kafka's rule for the largest timestamp too: an older record does not stand in for one above the end.
        if asking.committed_only and found is not None and found.offset >= end:
            found = None
    return _found(asked, asking.version, found, watermarks)


async def _by_timestamp(
    broker: Broker, timestamp: int, watermarks: Watermarks, asking: _Asking
) -> TimestampedOffset | None:
    """Raises TIMESTAMP_ERRORS, MetadataUnavailableError, and TimeoutError if this agent does not catch up in time."""
    partition_id = watermarks.partition_id
    while (log := broker.index.partition(partition_id)) is not None and log.end < watermarks.high_watermark:
        left_ms = asking.present_by_ms - broker.runtime.clock.monotonic_ms()
        # Our index may lag behind the fresh watermark: searched now, the newest records would be missed.
        if left_ms <= 0 or not await broker.parked_readers.wait([partition_id], left_ms):
            raise TimeoutError
    if timestamp == MAX_TIMESTAMP:
        return await broker.timestamps.largest(partition_id, asking.budget)
    return await broker.timestamps.first_at(partition_id, timestamp, asking.budget)


def _found(
    asked: ListOffsetsPartition, version: int, found: TimestampedOffset | None, watermarks: Watermarks
) -> ListOffsetsPartitionResponse:
    answer = ListOffsetsPartitionResponse(partition_index=asked.partition_index)
    if version == 0:
        # Segment starts, newest first, ending with the log start; there is one "segment" here.
        offsets = [] if found is None else [found.offset]
        if asked.timestamp == LATEST and watermarks.log_start_offset < watermarks.high_watermark:
            offsets.append(watermarks.log_start_offset)
        answer.old_style_offsets = offsets[: max(asked.max_num_offsets, 0)]
    elif found is not None:
        answer.offset, answer.timestamp = found.offset, found.timestamp_ms
        if version >= 4:
            answer.leader_epoch = LEADER_EPOCH
    return answer


def _failed(asked: ListOffsetsPartition, error: ErrorCode) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(partition_index=asked.partition_index, error_code=error)
