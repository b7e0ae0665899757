"""OffsetCommit 1-9. The group judges the member, its generation and its state; the store takes the offsets.

A partition that does not exist is answered UNKNOWN_TOPIC_OR_PARTITION, a text that is too long
OFFSET_METADATA_TOO_LARGE, each alone. The group's verdict is the answer for all others. The retention of v2 to v4 is
ignored, as in Kafka since KIP-211.

This agent may not know a partition because its topic cache lags. It then looks for the topic in the store, once; if
that fails, the answer is COORDINATOR_NOT_AVAILABLE.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

from agents.broker import Broker
from agents.groups.checks import Present, check_id, place_of
from agents.groups.events import CommitRequested
from agents.groups.held import GroupRefusedError
from agents.groups.offset_commits import Outcome
from agents.security.rights import allowed_in_turns
from agents.yielding import chunks_with_yields
from metadata.contract.groups import OffsetPlace, OffsetToCommit
from security.acls.values import Operation, ResourceType
from wire.api import RequestHeader
from wire.error_codes import ErrorCode
from wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

OFFSET_METADATA_MAX_BYTES = 4_096
"""The longest text beside a committed offset: the default of Kafka's `offset.metadata.max.bytes`."""

ErrorOf = Callable[[OffsetPlace], ErrorCode]


class _Part:
    """One partition of a request, on its way to an answer."""

    __slots__ = ("asked", "error", "place", "topic_name")

    def __init__(self, topic_name: str, asked: OffsetCommitRequestPartition, place: OffsetPlace | None) -> None:
        self.topic_name = topic_name
        self.asked = asked
        self.place = place
        self.error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def handle(broker: Broker, header: RequestHeader, request: OffsetCommitRequest) -> OffsetCommitResponse:
    parts: list[_Part] = []
    async for some in chunks_with_yields([(topic.name, each) for topic in request.topics for each in topic.partitions]):
        parts += [_Part(name, each, place_of(broker.topic_cache, name, each.partition_index)) for name, each in some]
    allowed = await _allowed(broker, request, parts)
    told: Sequence[_Part] = allowed or ()
    present = Present(broker.present_topics)
    await _find_again(broker, present, [part for part in told if part.place is None])
    # One that names no partition is a sign of life of its member.
    if told or (allowed is not None and not parts):
        await _commit(broker, header, request, [part for part in told if part.place is not None])
    # A topic may have been re-created. The group judges again: its generation may have moved on meanwhile.
    gone = [part for part in told if part.place is not None and part.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    moved = await _find_again(broker, present, gone)
    if moved:
        await _commit(broker, header, request, moved)
    answers: list[OffsetCommitResponsePartition] = []
    async for some in chunks_with_yields(parts):
        answers += [
            OffsetCommitResponsePartition(partition_index=part.asked.partition_index, error_code=part.error)
            for part in some
        ]
    in_order, topics = iter(answers), list[OffsetCommitResponseTopic]()
    async for some in chunks_with_yields(request.topics):
        topics += [
            OffsetCommitResponseTopic(name=topic.name, partitions=list(islice(in_order, len(topic.partitions))))
            for topic in some
        ]
    return OffsetCommitResponse(topics=topics)


async def _allowed(broker: Broker, request: OffsetCommitRequest, parts: Sequence[_Part]) -> Sequence[_Part] | None:
    """Those that the client may commit; the others get their errors. None: it may not use the group at all."""
    rights = broker.rights()
    if rights.is_unlimited:
        return parts
    if not rights.allows(Operation.READ, ResourceType.GROUP, request.group_id):
        for part in parts:
            part.error = ErrorCode.GROUP_AUTHORIZATION_FAILED
        return None
    names = await allowed_in_turns(rights, Operation.READ, ResourceType.TOPIC, {part.topic_name for part in parts})
    for part in parts:
        if part.topic_name not in names:
            part.error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return [part for part in parts if part.topic_name in names]


async def _find_again(broker: Broker, present: Present, unknown: Sequence[_Part]) -> Sequence[_Part]:
    """The unknown partitions that turned out to be elsewhere."""
    if not unknown:
        return []
    if not await present.see():
        for part in unknown:
            part.error = ErrorCode.COORDINATOR_NOT_AVAILABLE
        return []
    moved: list[_Part] = []
    async for some in chunks_with_yields(unknown):
        for part in some:
            place = place_of(broker.topic_cache, part.topic_name, part.asked.partition_index)
            # If the place is still the same, the partition is gone: the store has just called it unknown.
            if place is not None and place != part.place:
                part.place = place
                moved.append(part)
    return moved


async def _commit(broker: Broker, header: RequestHeader, request: OffsetCommitRequest, parts: Sequence[_Part]) -> None:
    """Commit these offsets at their places. The group judges even if none is left."""
    offsets: list[OffsetToCommit] = []
    written: list[tuple[_Part, OffsetPlace]] = []
    async for some in chunks_with_yields(parts):
        for part in some:
            place = part.place
            if len(part.asked.committed_metadata or "") > OFFSET_METADATA_MAX_BYTES:
                part.error = ErrorCode.OFFSET_METADATA_TOO_LARGE
            elif place is not None:
                written.append((part, place))
                offsets.append(_to_commit(part.asked, place))
    # Even with nothing to write: a commit is a sign of life of its member.
    error_of = await _outcome(broker, header, request, offsets)
    async for some in chunks_with_yields(written):
        for part, place in some:
            part.error = error_of(place)


def _to_commit(asked: OffsetCommitRequestPartition, place: OffsetPlace) -> OffsetToCommit:
    return OffsetToCommit(
        place=place,
        offset=asked.committed_offset,
        leader_epoch=asked.committed_leader_epoch,
        metadata=asked.committed_metadata or "",
    )


async def _outcome(
    broker: Broker, header: RequestHeader, request: OffsetCommitRequest, offsets: list[OffsetToCommit]
) -> ErrorOf:
    """The outcome of each place."""
    event = CommitRequested(
        request=broker.groups.next_request(),
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        generation=request.generation_id_or_member_epoch,
    )
    outcome: Outcome | None
    try:
        check_id(request.group_id, may_be_empty=True)
        outcome = await broker.groups.commit(request.group_id, event, offsets)
    except GroupRefusedError as refused:
        outcome = refused.code
    # A member of a generation asks for a group that does not exist. Version 9 has an error of its own for that.
    if outcome is None:
        outcome = ErrorCode.GROUP_ID_NOT_FOUND if header.api_version >= 9 else ErrorCode.ILLEGAL_GENERATION
    if isinstance(outcome, ErrorCode):
        error = outcome
        return lambda place: error
    if outcome.fenced:
        return lambda place: ErrorCode.NOT_COORDINATOR
    unknown = outcome.unknown
    return lambda place: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if place in unknown else ErrorCode.NONE
