"""OffsetFetch 1-9: committed offsets, read from the store each time. A partition without a commit has -1, and no error.

Only the group's owner answers, as clients expect, but it does not take the group, because it needs nothing of it. Every
commit that was accepted before a rebalance is written before a member learns its new assignment, so a member that asks
after that sees it. If the store does not answer, the error is COORDINATOR_LOAD_IN_PROGRESS, the only retriable error
that every client handles here. The same error is the answer if nothing is found and the present topics cannot be looked
at: -1 makes a consumer begin elsewhere, so it never comes from a topic cache that may lag.

With `require_stable` (from version 7 on) a partition for which an ongoing transaction holds an offset is answered
UNSTABLE_OFFSET_COMMIT: a consumer that took it over now would read again what the transaction has read. A request for
all offsets names such a partition too, even without a committed offset; Kafka leaves it out then.

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
from metadata.groups.contract import OffsetPlace, StableOffsets
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


class _Wanted(NamedTuple):
    group_id: str
    asked: Asked | None
    """None: all offsets of the group."""
    require_stable: bool


_AllFound: TypeAlias = Sequence[tuple[str, _Found]]
"""By name of topic."""

ANSWER_BYTES_MAX = 16 << 20
"""Bound over all groups of an answer; one group alone may have more."""
OFFSET_BYTES = 500
"""Approximate memory of one offset in an answer, without its metadata."""
_ERROR_SINCE = 2
"""From this version on an answer has an error of its own, and names no topic beside it; before, each partition has the
error."""


async def handle(broker: Broker, header: RequestHeader, request: OffsetFetchRequest) -> OffsetFetchResponse:
    if header.api_version < 8:
        topics = None if request.topics is None else [(each.name, each.partition_indexes) for each in request.topics]
        return await _one_group(broker, header.api_version, request, topics)
    groups: list[OffsetFetchResponseGroup] = []
    present = Present(broker.present_topics)
    room = ANSWER_BYTES_MAX
    for group_id, asked in _asked_by_group(request.groups).items():
        groups.append(
            await _of_many(broker, present, _Wanted(group_id, asked, request.require_stable))
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


async def _one_group(
    broker: Broker, version: int, request: OffsetFetchRequest, asked: Asked | None
) -> OffsetFetchResponse:
    error = ErrorCode.NONE
    wanted = _Wanted(request.group_id, asked, request.require_stable)
    try:
        found = await _read(broker, Present(broker.present_topics), wanted)
    except GroupRefusedError as refused:
        error = refused.code
        if version >= _ERROR_SINCE:
            return OffsetFetchResponse(error_code=error)
        found = [(name, _without(partition)) for name, partitions in asked or () for partition in partitions]
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


async def _of_many(broker: Broker, present: Present, wanted: _Wanted) -> OffsetFetchResponseGroup:
    group_id, asked, _ = wanted
    try:
        found = await _read(broker, present, wanted)
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


async def _read(broker: Broker, present: Present, wanted: _Wanted) -> _AllFound:
    """Raises GroupRefusedError."""
    group_id, asked, _ = wanted
    check_allowed(broker.rights(), Operation.DESCRIBE, group_id)
    check_id(group_id, may_be_empty=True)
    broker.groups.check_owned(group_id)
    try:
        if asked is None:
            return await _read_all(broker, present, wanted)
        rights, seen = broker.rights(), {name for name, _ in asked}
        names = await allowed_in_turns(rights, Operation.DESCRIBE, ResourceType.TOPIC, seen)
        refused = [
            (name, _without(partition, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
            for name, partitions in asked
            if name not in names
            for partition in partitions
        ]
        allowed = [each for each in asked if each[0] in names]
        return [*await _read_some(broker, present, wanted, allowed), *refused]
    except MetadataUnavailableError as error:
        raise GroupRefusedError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, str(error)) from error


async def _read_all(broker: Broker, present: Present, wanted: _Wanted) -> _AllFound:
    stable = await _stable_at(broker, wanted, None)
    places = stable.offsets.keys() | stable.pending
    if any(broker.topic_cache.topic_by_id(topic_id) is None for topic_id in {place.topic_id for place in places}):
        await _see(present)
    rights = broker.rights()
    found: list[tuple[str, _Found]] = []
    in_order = sorted(places, key=lambda place: (place.topic_id.int, place.partition))
    async for some in chunks_with_yields(in_order):
        for place in some:
            topic = broker.topic_cache.topic_by_id(place.topic_id)
            # Without a topic: it is being deleted right now.
            if topic is not None and rights.sees(Operation.DESCRIBE, ResourceType.TOPIC, topic.name):
                found.append((topic.name, _found(stable, place.partition, place)))
    return found


async def _read_some(broker: Broker, present: Present, wanted: _Wanted, asked: Asked) -> _AllFound:
    places: dict[tuple[str, int], OffsetPlace | None] = {}
    async for some in chunks_with_yields([(name, partition) for name, partitions in asked for partition in partitions]):
        places.update({each: place_of(broker.topic_cache, *each) for each in some})
    stable = await _stable_at(broker, wanted, places.values())
    missing: list[tuple[str, int]] = []
    async for pairs in chunks_with_yields(list(places.items())):
        missing += [
            each for each, place in pairs if place is None or not (place in stable.offsets or place in stable.pending)
        ]
    if missing:
        # Possibly missing only in our view of the topics: they may have grown, or been re-created.
        await _see(present)
        moved: dict[tuple[str, int], OffsetPlace | None] = {}
        async for some in chunks_with_yields(missing):
            moved.update({each: at for each in some if (at := place_of(broker.topic_cache, *each)) != places[each]})
        places |= moved
        more = await _stable_at(broker, wanted, moved.values())
        stable = StableOffsets({**stable.offsets, **more.offsets}, stable.pending | more.pending)
    found: list[tuple[str, _Found]] = []
    async for pairs in chunks_with_yields(list(places.items())):
        found += [(name, _found(stable, partition, place)) for (name, partition), place in pairs]
    return found


async def _see(present: Present) -> None:
    if not await present.see():
        raise GroupRefusedError(
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "the metadata store did not list the topics in time; try again"
        )


async def _stable_at(broker: Broker, wanted: _Wanted, places: Iterable[OffsetPlace | None] | None) -> StableOffsets:
    """None asks for all places. Nothing is pending for a client that does not ask for stable offsets."""
    known = None if places is None else [place for place in places if place is not None]
    groups = broker.metadata.groups
    if known is not None and not known:
        return StableOffsets({}, frozenset())
    if wanted.require_stable:
        return await groups.stable_offsets(wanted.group_id, known)
    return StableOffsets(await groups.offsets(wanted.group_id, known), frozenset())


def _found(stable: StableOffsets, partition: int, place: OffsetPlace | None) -> _Found:
    if place in stable.pending:
        return _without(partition, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    committed = None if place is None else stable.offsets.get(place)
    if committed is None:
        return _without(partition)
    return _Found(partition, committed.offset, committed.leader_epoch, committed.metadata, ErrorCode.NONE)


def _without(partition: int, error: ErrorCode = ErrorCode.NONE) -> _Found:
    return _Found(partition, -1, -1, "", error)
