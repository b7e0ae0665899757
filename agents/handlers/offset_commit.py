"""OffsetCommit 1-9. The group judges the member, its generation and its state; the store takes the offsets.

A partition that does not exist is answered UNKNOWN_TOPIC_OR_PARTITION, too long a text OFFSET_METADATA_TOO_LARGE, each
alone. What the group says stands for all others. How long an offset is kept is the group's business: what v2 to v4 say
about it is not looked at, as in Kafka since KIP-211.
"""

from __future__ import annotations

from collections.abc import Callable

from agents.broker import Broker
from agents.groups.checks import check_id, look_up, place_of
from agents.groups.events import CommitRequested
from agents.groups.held import GroupRefusedError
from agents.groups.offset_commits import Outcome
from metadata.groups import OffsetPlace, OffsetToCommit
from wire.api import RequestHeader
from wire.error_codes import ErrorCode
from wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

ErrorOf = Callable[[OffsetPlace], ErrorCode]


async def handle(broker: Broker, header: RequestHeader, request: OffsetCommitRequest) -> OffsetCommitResponse:
    await look_up(broker.catalog, broker.follower, [topic.name for topic in request.topics])
    text_max = broker.settings.offset_metadata_max_bytes
    offsets: list[OffsetToCommit] = []
    errors: list[list[ErrorCode | OffsetPlace]] = []
    for topic in request.topics:
        errors.append([])
        for each in topic.partitions:
            place = place_of(broker.catalog, topic.name, each.partition_index)
            text = each.committed_metadata or ""
            if place is None:
                errors[-1].append(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            elif len(text) > text_max:
                errors[-1].append(ErrorCode.OFFSET_METADATA_TOO_LARGE)
            else:
                errors[-1].append(place)
                offsets.append(
                    OffsetToCommit(
                        place=place,
                        offset=each.committed_offset,
                        leader_epoch=each.committed_leader_epoch,
                        metadata=text,
                    )
                )
    error_of = await _commit(broker, header, request, offsets)
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetCommitResponsePartition(
                        partition_index=each.partition_index,
                        error_code=error if isinstance(error, ErrorCode) else error_of(error),
                    )
                    for each, error in zip(topic.partitions, judged, strict=True)
                ],
            )
            for topic, judged in zip(request.topics, errors, strict=True)
        ]
    )


async def _commit(
    broker: Broker, header: RequestHeader, request: OffsetCommitRequest, offsets: list[OffsetToCommit]
) -> ErrorOf:
    """What came of each place."""
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
    if outcome is None:
        outcome = ErrorCode.GROUP_ID_NOT_FOUND if header.api_version >= 9 else ErrorCode.ILLEGAL_GENERATION
    if isinstance(outcome, ErrorCode):
        error = outcome
        return lambda place: error
    if outcome.fenced:
        return lambda place: ErrorCode.NOT_COORDINATOR
    unknown = outcome.unknown
    return lambda place: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if place in unknown else ErrorCode.NONE
