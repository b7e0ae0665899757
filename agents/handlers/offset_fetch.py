"""OffsetFetch 1-9: committed offsets, read from the store each time. What was never committed is -1, and no error.

Answered by the group's owner alone, as clients expect, but without taking the group: nothing of it is needed. Every
commit that was accepted before a rebalance is written before a member learns its new assignment, so whoever asks after
that sees it. `require_stable` has nothing to wait for until transactions exist. A store that does not answer is
COORDINATOR_LOAD_IN_PROGRESS: of all retriable errors the one that every client takes here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from agents.broker import Broker
from agents.groups.checks import check_id, look_up, look_up_ids, place_of
from agents.groups.held import GroupRefusedError
from metadata.groups import CommittedOffset, OffsetPlace
from metadata.service import MetadataUnavailableError
from wire.api import RequestHeader
from wire.error_codes import ErrorCode
from wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

Asked: TypeAlias = Sequence[tuple[str, Sequence[int]]]
"""Partitions by name of topic."""


class _Found(NamedTuple):
    partition: int
    offset: int
    leader_epoch: int
    metadata: str


_NONE = CommittedOffset(offset=-1, leader_epoch=-1, metadata="", committed_ms=-1)


async def handle(broker: Broker, header: RequestHeader, request: OffsetFetchRequest) -> OffsetFetchResponse:
    if header.api_version < 8:
        topics = None if request.topics is None else [(each.name, each.partition_indexes) for each in request.topics]
        return await _one_group(broker, request.group_id, topics)
    groups: list[OffsetFetchResponseGroup] = []
    for group in request.groups:
        asked = None if group.topics is None else [(each.name, each.partition_indexes) for each in group.topics]
        groups.append(await _of_many(broker, group.group_id, asked))
    return OffsetFetchResponse(groups=groups)


async def _one_group(broker: Broker, group_id: str, asked: Asked | None) -> OffsetFetchResponse:
    error = ErrorCode.NONE
    try:
        found = await _read(broker, group_id, asked)
    except GroupRefusedError as refused:
        # Versions below 2 have no error but the partitions'.
        error = refused.code
        found = {name: [_found(at, _NONE) for at in partitions] for name, partitions in asked or ()}
    topics = [
        OffsetFetchResponseTopic(
            name=name,
            partitions=[
                OffsetFetchResponsePartition(
                    partition_index=each.partition,
                    committed_offset=each.offset,
                    committed_leader_epoch=each.leader_epoch,
                    metadata=each.metadata,
                    error_code=error,
                )
                for each in partitions
            ],
        )
        for name, partitions in found.items()
    ]
    return OffsetFetchResponse(topics=topics, error_code=error)


async def _of_many(broker: Broker, group_id: str, asked: Asked | None) -> OffsetFetchResponseGroup:
    try:
        found = await _read(broker, group_id, asked)
    except GroupRefusedError as refused:
        return OffsetFetchResponseGroup(group_id=group_id, error_code=refused.code)
    topics = [
        OffsetFetchResponseTopics(
            name=name,
            partitions=[
                OffsetFetchResponsePartitions(
                    partition_index=each.partition,
                    committed_offset=each.offset,
                    committed_leader_epoch=each.leader_epoch,
                    metadata=each.metadata,
                )
                for each in partitions
            ],
        )
        for name, partitions in found.items()
    ]
    return OffsetFetchResponseGroup(group_id=group_id, topics=topics)


async def _read(broker: Broker, group_id: str, asked: Asked | None) -> Mapping[str, Sequence[_Found]]:
    """By name of topic. None asks for all of the group's. Raises GroupRefusedError."""
    check_id(group_id, may_be_empty=True)
    broker.groups.check_owned(group_id)
    try:
        return await (_read_all(broker, group_id) if asked is None else _read_some(broker, group_id, asked))
    except MetadataUnavailableError as error:
        raise GroupRefusedError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, str(error)) from error


async def _read_all(broker: Broker, group_id: str) -> Mapping[str, Sequence[_Found]]:
    offsets = await broker.metadata.offsets(group_id)
    await look_up_ids(broker.catalog, broker.follower, {place.topic_id for place in offsets})
    found: dict[str, list[_Found]] = {}
    for place, committed in sorted(offsets.items(), key=lambda item: (item[0].topic_id.int, item[0].partition)):
        topic = broker.catalog.topic_by_id(place.topic_id)
        if topic is not None:  # else it is being deleted this moment
            found.setdefault(topic.name, []).append(_found(place.partition, committed))
    return found


async def _read_some(broker: Broker, group_id: str, asked: Asked) -> Mapping[str, Sequence[_Found]]:
    await look_up(broker.catalog, broker.follower, [name for name, _ in asked])
    places: dict[tuple[str, int], OffsetPlace | None] = {
        (name, partition): place_of(broker.catalog, name, partition)
        for name, partitions in asked
        for partition in partitions
    }
    known = [place for place in places.values() if place is not None]
    offsets: Mapping[OffsetPlace, CommittedOffset] = {}
    if known:
        offsets = await broker.metadata.offsets(group_id, known)
    found: dict[str, list[_Found]] = {name: [] for name, _ in asked}
    for (name, partition), place in places.items():
        found[name].append(_found(partition, _NONE if place is None else offsets.get(place, _NONE)))
    return found


def _found(partition: int, committed: CommittedOffset) -> _Found:
    return _Found(partition, committed.offset, committed.leader_epoch, committed.metadata)
