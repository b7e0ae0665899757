"""DeleteRecords 0-2 (KIP-107): move a partition's log start up. Data that lies wholly below is deleted later.

-1 means the high watermark, which always comes from the store, never from this agent's memory. An offset below the log
start changes nothing and is no error. The log start may come to lie inside a batch: that batch is served whole, and
clients skip the records below. This agent's index moves at once; other agents learn of it by the tail.
"""

from __future__ import annotations

from agents.broker import Broker
from agents.security.rights import allowed_in_turns
from agents.topics.present import look_for, not_there
from agents.topics.rules import RequestError, code_of
from agents.yielding import LoopYielder
from metadata.configs.topic import as_list
from metadata.contract.topics import InvalidOffsetError
from runtime.errors import SiltstoneError
from runtime.logging import get_logger
from security.acls.values import Operation, ResourceType
from wire.api import RequestHeader
from wire.error_codes import ErrorCode
from wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

_log = get_logger(__name__)


async def handle(broker: Broker, header: RequestHeader, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    names = {topic.name for topic in request.topics}
    allowed = await allowed_in_turns(broker.rights(), Operation.DELETE, ResourceType.TOPIC, names)
    places = (
        (topic.name, part.partition_index)
        for topic in request.topics
        if topic.name in allowed
        for part in topic.partitions
    )
    seen = await look_for(broker, places)
    topics: list[DeleteRecordsTopicResult] = []
    yielder = LoopYielder()
    async for topic in yielder.through(request.topics):
        results = [
            await _delete(broker, topic.name, asked, seen=seen)
            if topic.name in allowed
            else DeleteRecordsPartitionResult(
                partition_index=asked.partition_index,
                low_watermark=-1,
                error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            )
            async for asked in yielder.through(topic.partitions)
        ]
        topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=results))
    return DeleteRecordsResponse(topics=topics)


async def _delete(
    broker: Broker, name: str, asked: DeleteRecordsPartition, *, seen: bool
) -> DeleteRecordsPartitionResult:
    result = DeleteRecordsPartitionResult(partition_index=asked.partition_index, low_watermark=-1)
    try:
        partition_id = _partition_id(broker, name, asked.partition_index, seen=seen)
        result.low_watermark = await broker.metadata.agents.delete_records(partition_id, asked.offset)
    except InvalidOffsetError:
        result.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
    except SiltstoneError as error:
        result.error_code = code_of(error)
    else:
        # At once: a client that deletes and then reads through this agent must not see the records again.
        broker.index.move_log_start(partition_id, result.low_watermark)
        await broker.hint_others()
        _log.info("records deleted", topic=name, partition=asked.partition_index, log_start=result.low_watermark)
    return result


def _partition_id(broker: Broker, name: str, number: int, *, seen: bool) -> int:
    """Raises RequestError if the partition does not exist, or if records may not be deleted from it."""
    topic = broker.topic_cache.topic(name)
    if topic is None or not 0 <= number < len(topic.partition_ids):
        raise not_there(f"partition {number} of a topic {name!r}", seen=seen)
    policy = as_list(broker.topic_cache.configs(topic), "cleanup.policy")
    if "compact" in policy and "delete" not in policy:
        raise RequestError(ErrorCode.POLICY_VIOLATION, f"topic {name!r} is compacted: its records cannot be deleted")
    return topic.partition_ids[number]
