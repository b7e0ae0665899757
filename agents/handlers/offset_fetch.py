"""OffsetFetch 1-9: committed offsets, read from the store each time. A partition without a commit has -1, and no error.

Only the group's owner answers, as clients expect, but it does not take the group, because it needs nothing of it. Every
commit that was accepted before a rebalance is written before a member learns its new assignment, so a member that asks
after that sees it. `require_stable` has nothing to wait for until transactions exist. If the store does not answer, the
error is COORDINATOR_LOAD_IN_PROGRESS, the only retriable error that every client handles here. The same error is the
answer if nothing is found and the present topics cannot be looked at: -1 makes a consumer begin elsewhere, so it never
comes from a topic cache that may lag.

One answer names a group once, with all its requested partitions, and holds ANSWER_BYTES_MAX; further groups are told to
come again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from agents.broker import Broker
from agents.groups.checks import Present, check_allowed, check_id, place_of
from agents.groups.held import GroupRefusedError
from agents.security.rights import allowed_in_turns
from agents.yielding import chunks_with_yields
from metadata.contract.errors import MetadataUnavailableError
from metadata.contract.groups import CommittedOffset, OffsetPlace
from security.acls.values import Operation, ResourceType
from wire.api import RequestHeader
from wire.error_codes import ErrorCode
from wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
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
    error: ErrorCode


_AllFound: TypeAlias = Sequence[tuple[str, _Found]]
"""By name of topic."""

ANSWER_BYTES_MAX = 16 << 20
"""Bound over all groups of an answer; one group alone may have more."""
OFFSET_BYTES = 500
"""Approximate memory of one offset in an answer, without its metadata."""
_ERROR_SINCE = 2
"""From this version on an answer has an error of its own, and names no topic beside it; before, each partition has the
error."""
_NONE = CommittedOffset(offset=-1, leader_epoch=-1, metadata="", committed_ms=-1)


async def handle(broker: Broker, header: RequestHeader, request: OffsetFetchRequest) -> OffsetFetchResponse:
    if header.api_version < 8:
        topics = None if request.topics is None else [(each.name, each.partition_indexes) for each in request.topics]
        return await _one_group(broker, header.api_version, request.group_id, topics)
    groups: list[OffsetFetchResponseGroup] = []
    present = Present(broker.present_topics)
    room = ANSWER_BYTES_MAX
    for group_id, asked in _asked_by_group(request.groups).items():
        groups.append(
            await _of_many(broker, present, group_id, asked)
            if room > 0
            else OffsetFetchResponseGroup(group_id=group_id, error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        )
        # Counted afterwards, so that the first group always gets its answer, however large.
        room -= _bytes_of(groups[-1])
        await asyncio.sleep(0)
    return OffsetFetchResponse(groups=groups)


def _asked_by_group(groups: Iterable[OffsetFetchRequestGroup]) -> Mapping[str, Asked | None]:
    asked: dict[str, list[tuple[str, Sequence[int]]] | None] = {}
    for group in groups:
        known = asked.setdefault(group.group_id, [])
        if group.topics is None or known is None:
            asked[group.group_id] = None
        else:
            known += [(each.name, each.partition_indexes) for each in group.topics]
    return asked


def _bytes_of(group: OffsetFetchResponseGroup) -> int:
    return sum(OFFSET_BYTES + len(each.metadata or "") for topic in group.topics for each in topic.partitions)


async def _one_group(broker: Broker, version: int, group_id: str, asked: Asked | None) -> OffsetFetchResponse:
    error = ErrorCode.NONE
    try:
        found = await _read(broker, Present(broker.present_topics), group_id, asked)
    except GroupRefusedError as refused:
        error = refused.code
        if version >= _ERROR_SINCE:
            return OffsetFetchResponse(error_code=error)
        found = [(name, _found(partition, _NONE)) for name, partitions in asked or () for partition in partitions]
    topics: dict[str, OffsetFetchResponseTopic] = {
        name: OffsetFetchResponseTopic(name=name, partitions=[]) for name, _ in asked or ()
    }
    async for some in chunks_with_yields(found):
        for name, each in some:
            if name not in topics:
                topics[name] = OffsetFetchResponseTopic(name=name, partitions=[])
            topics[name].partitions.append(
                OffsetFetchResponsePartition(
                    partition_index=each.partition,
                    committed_offset=each.offset,
                    committed_leader_epoch=each.leader_epoch,
                    metadata=each.metadata,
                    error_code=error or each.error,
                )
            )
    return OffsetFetchResponse(topics=list(topics.values()), error_code=error)


async def _of_many(broker: Broker, present: Present, group_id: str, asked: Asked | None) -> OffsetFetchResponseGroup:
    try:
        found = await _read(broker, present, group_id, asked)
    except GroupRefusedError as refused:
        return OffsetFetchResponseGroup(group_id=group_id, error_code=refused.code)
    topics: dict[str, OffsetFetchResponseTopics] = {
        name: OffsetFetchResponseTopics(name=name, partitions=[]) for name, _ in asked or ()
    }
    async for some in chunks_with_yields(found):
        for name, each in some:
            if name not in topics:
                topics[name] = OffsetFetchResponseTopics(name=name, partitions=[])
            topics[name].partitions.append(
                OffsetFetchResponsePartitions(
                    partition_index=each.partition,
                    committed_offset=each.offset,
                    committed_leader_epoch=each.leader_epoch,
                    metadata=each.metadata,
                    error_code=each.error,
                )
            )
    return OffsetFetchResponseGroup(group_id=group_id, topics=list(topics.values()))


async def _read(broker: Broker, present: Present, group_id: str, asked: Asked | None) -> _AllFound:
    """None asks for all offsets of the group. Raises GroupRefusedError."""
    check_allowed(broker.rights(), Operation.DESCRIBE, group_id)
    check_id(group_id, may_be_empty=True)
    broker.groups.check_owned(group_id)
    try:
        if asked is None:
            return await _read_all(broker, present, group_id)
        rights, seen = broker.rights(), {name for name, _ in asked}
        names = await allowed_in_turns(rights, Operation.DESCRIBE, ResourceType.TOPIC, seen)
        refused = [
            (name, _found(partition, _NONE, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
            for name, partitions in asked
            if name not in names
            for partition in partitions
        ]
        allowed = [each for each in asked if each[0] in names]
        return [*await _read_some(broker, present, group_id, allowed), *refused]
    except MetadataUnavailableError as error:
        raise GroupRefusedError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, str(error)) from error


async def _read_all(broker: Broker, present: Present, group_id: str) -> _AllFound:
    offsets = await broker.metadata.groups.offsets(group_id)
    if any(broker.topic_cache.topic_by_id(topic_id) is None for topic_id in {place.topic_id for place in offsets}):
        await _see(present)
    rights = broker.rights()
    found: list[tuple[str, _Found]] = []
    in_order = sorted(offsets.items(), key=lambda item: (item[0].topic_id.int, item[0].partition))
    async for some in chunks_with_yields(in_order):
        for place, committed in some:
            topic = broker.topic_cache.topic_by_id(place.topic_id)
            # Without a topic: it is being deleted right now.
            if topic is not None and rights.sees(Operation.DESCRIBE, ResourceType.TOPIC, topic.name):
                found.append((topic.name, _found(place.partition, committed)))
    return found


async def _read_some(broker: Broker, present: Present, group_id: str, asked: Asked) -> _AllFound:
    places: dict[tuple[str, int], OffsetPlace | None] = {}
    async for some in chunks_with_yields([(name, partition) for name, partitions in asked for partition in partitions]):
        places.update({each: place_of(broker.topic_cache, *each) for each in some})
    offsets = await _offsets_at(broker, group_id, places.values())
    missing: list[tuple[str, int]] = []
    async for pairs in chunks_with_yields(list(places.items())):
        missing += [each for each, place in pairs if place is None or place not in offsets]
    if missing:
        # Possibly missing only in our view of the topics: they may have grown, or been re-created.
        await _see(present)
        moved: dict[tuple[str, int], OffsetPlace | None] = {}
        async for some in chunks_with_yields(missing):
            moved.update({each: at for each in some if (at := place_of(broker.topic_cache, *each)) != places[each]})
        places |= moved
        offsets = {**offsets, **await _offsets_at(broker, group_id, moved.values())}
    found: list[tuple[str, _Found]] = []
    async for pairs in chunks_with_yields(list(places.items())):
        found += [
            (name, _found(partition, _NONE if place is None else offsets.get(place, _NONE)))
            for (name, partition), place in pairs
        ]
    return found


async def _see(present: Present) -> None:
    if not await present.see():
        raise GroupRefusedError(
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "the metadata store did not list the topics in time; try again"
        )


async def _offsets_at(
    broker: Broker, group_id: str, places: Iterable[OffsetPlace | None]
) -> Mapping[OffsetPlace, CommittedOffset]:
    known = [place for place in places if place is not None]
    return await broker.metadata.groups.offsets(group_id, known) if known else {}


def _found(partition: int, committed: CommittedOffset, error: ErrorCode = ErrorCode.NONE) -> _Found:
    return _Found(partition, committed.offset, committed.leader_epoch, committed.metadata, error)
