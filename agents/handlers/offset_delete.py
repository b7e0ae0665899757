"""OffsetDelete 0 (KIP-496): for a group of consumers, the offsets of topics that no member subscribes to; for any other
group all offsets, once it has no members."""

from __future__ import annotations

from collections.abc import AsyncIterable

from agents.broker import Broker
from agents.groups.checks import Present, check_allowed, check_id, place_of
from agents.groups.events import GroupState, GroupView
from agents.groups.held import GroupRefusedError
from agents.yielding import LoopYielder
from metadata.groups.contract import OffsetPlace
from security.acls.values import Operation, ResourceType
from wire.api import RequestHeader
from wire.error_codes import ErrorCode
from wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)

CONSUMER = "consumer"


async def handle(broker: Broker, header: RequestHeader, request: OffsetDeleteRequest) -> OffsetDeleteResponse:
    yielder = LoopYielder()
    try:
        check_allowed(broker.rights(), Operation.DELETE, request.group_id)
        check_id(request.group_id)
        broker.groups.check_owned(request.group_id)
        # Always look: a deletion under an outdated topic id would delete nothing, and no error would tell.
        if not await Present(broker.present_topics).see():
            raise GroupRefusedError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, "the metadata store did not list the topics in time; try again"
            )
        view = await broker.groups.view(request.group_id)
        if view is None or view.state is GroupState.DEAD:
            raise GroupRefusedError(ErrorCode.GROUP_ID_NOT_FOUND, "there is no such group")
        if view.state is not GroupState.EMPTY and view.protocol_type != CONSUMER:
            raise GroupRefusedError(ErrorCode.NON_EMPTY_GROUP, "the group has members")
        places: list[OffsetPlace] = []
        topics: list[OffsetDeleteResponseTopic] = []
        async for topic in yielder.through(request.topics):
            asked = [each.partition_index for each in topic.partitions]
            topics.append(await _judge(broker, view, topic.name, yielder.through(asked), places))
        if places:
            await broker.groups.delete_offsets(request.group_id, places)
    except GroupRefusedError as refused:
        return OffsetDeleteResponse(error_code=refused.code)
    return OffsetDeleteResponse(topics=topics)


async def _judge(
    broker: Broker, view: GroupView, name: str, asked: AsyncIterable[int], places: list[OffsetPlace]
) -> OffsetDeleteResponseTopic:
    """Adds the offsets that may go to `places`."""
    answers: list[OffsetDeleteResponsePartition] = []
    allowed = broker.rights().allows(Operation.READ, ResourceType.TOPIC, name)
    async for partition in asked:
        place = place_of(broker.topic_cache, name, partition)
        if not allowed:
            error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif place is None:
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif _is_subscribed(view, name):
            error = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        else:
            error = ErrorCode.NONE
            places.append(place)
        answers.append(OffsetDeleteResponsePartition(partition_index=partition, error_code=error))
    return OffsetDeleteResponseTopic(name=name, partitions=answers)


def _is_subscribed(view: GroupView, topic_name: str) -> bool:
    """If the members' topics cannot be known, they may read anything (ClassicGroup.isSubscribedToTopic)."""
    if view.state is GroupState.EMPTY:
        return False
    return view.subscribed_topics is None or topic_name in view.subscribed_topics
