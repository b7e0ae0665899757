"""OffsetForLeaderEpoch 2-4: where the records of a leader epoch end, for consumers that check their position (KIP-320).

The leader epoch is always 0 and nothing is ever truncated, so epoch 0 ends at the high watermark. It is read fresh: an
end below the client's position would look like lost records. Any other epoch is unknown (-1, -1), as in Kafka's
`UnifiedLog.endOffsetForEpoch`.
"""

from __future__ import annotations

from collections.abc import Mapping

from agents.broker import Broker
from agents.security.rights import allowed_in_turns
from agents.topics.present import look_for
from agents.yielding import LoopYielder, chunks_with_yields
from metadata.contract.errors import MetadataUnavailableError
from metadata.contract.topics import Watermarks
from security.acls.values import Operation, ResourceType
from wire.api import RequestHeader
from wire.error_codes import ErrorCode
from wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
    OffsetForLeaderTopicResult,
)

LEADER_EPOCH = 0


async def handle(
    broker: Broker, header: RequestHeader, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    names = {topic.topic for topic in request.topics}
    rights = broker.rights()
    allowed = names
    if not rights.holds_cluster(Operation.CLUSTER_ACTION):  # a broker's right, which Kafka takes here too
        allowed = await allowed_in_turns(rights, Operation.DESCRIBE, ResourceType.TOPIC, names)
    topics = [topic for topic in request.topics if topic.topic in allowed]
    seen = await look_for(broker, ((topic.topic, part.partition) for topic in topics for part in topic.partitions))
    ids: dict[tuple[str, int], int | None] = {}
    async for some in chunks_with_yields([(topic, part) for topic in topics for part in topic.partitions]):
        ids.update({(topic.topic, part.partition): _partition_id(broker, topic, part) for topic, part in some})
    try:
        fresh = await broker.fresh.get([each for each in ids.values() if each is not None])
    except MetadataUnavailableError:
        fresh = None
    answered: list[OffsetForLeaderTopicResult] = []
    yielder = LoopYielder()
    async for topic in yielder.through(request.topics):
        parts = yielder.through(topic.partitions)
        answers = [
            _answer(part, ids[topic.topic, part.partition], fresh, seen=seen)
            if topic.topic in allowed
            else EpochEndOffset(partition=part.partition, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            async for part in parts
        ]
        answered.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=answers))
    return OffsetForLeaderEpochResponse(topics=answered)


def _partition_id(broker: Broker, asked: OffsetForLeaderTopic, part: OffsetForLeaderPartition) -> int | None:
    topic = broker.topic_cache.topic(asked.topic)
    if topic is None or not 0 <= part.partition < len(topic.partition_ids):
        return None
    return topic.partition_ids[part.partition]


def _answer(
    asked: OffsetForLeaderPartition, partition_id: int | None, fresh: Mapping[int, Watermarks] | None, *, seen: bool
) -> EpochEndOffset:
    answer = EpochEndOffset(partition=asked.partition)
    watermarks = None if partition_id is None or fresh is None else fresh.get(partition_id)
    if partition_id is not None and asked.current_leader_epoch > LEADER_EPOCH:
        answer.error_code = ErrorCode.UNKNOWN_LEADER_EPOCH
    elif (fresh is None and partition_id is not None) or (partition_id is None and not seen):
        answer.error_code = ErrorCode.LEADER_NOT_AVAILABLE
    elif watermarks is None:
        answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    # Any other epoch keeps the defaults -1, -1: "unknown", which is not an error.
    elif asked.leader_epoch == LEADER_EPOCH:
        answer.leader_epoch, answer.end_offset = LEADER_EPOCH, watermarks.high_watermark
    return answer
