"""OffsetCommit 1-9. The group judges the member, its generation and its state; the store takes the offsets
(`offsets_to_commit.py`). The retention of v2 to v4 is ignored, as in Kafka since KIP-211.
"""

from __future__ import annotations

from collections.abc import Sequence

from agents.broker import Broker
from agents.groups.checks import check_id
from agents.groups.events import CommitRequested
from agents.groups.held import GroupRefusedError
from agents.groups.offset_commits import Outcome
from agents.handlers.offsets_to_commit import answered, commit_parts, parts_of, readable
from metadata.groups.contract import OffsetToCommit
from security.acls.values import Operation, ResourceType
from wire.api import RequestHeader
from wire.error_codes import ErrorCode
from wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)


async def handle(broker: Broker, header: RequestHeader, request: OffsetCommitRequest) -> OffsetCommitResponse:
    parts = await parts_of(broker, request.topics)
    rights = broker.rights()
    if rights.allows(Operation.READ, ResourceType.GROUP, request.group_id):
        told = await readable(rights, parts)
        # One that names no partition is a sign of life of its member.
        if told or not parts:
            await commit_parts(broker, told, lambda offsets: _commit(broker, header, request, offsets))
    else:
        for part in parts:
            part.error = ErrorCode.GROUP_AUTHORIZATION_FAILED
    topics = await answered(
        request.topics,
        parts,
        lambda index, error: OffsetCommitResponsePartition(partition_index=index, error_code=error),
        lambda name, answers: OffsetCommitResponseTopic(name=name, partitions=answers),
    )
    return OffsetCommitResponse(topics=topics)


async def _commit(
    broker: Broker, header: RequestHeader, request: OffsetCommitRequest, offsets: Sequence[OffsetToCommit]
) -> Outcome:
    event = CommitRequested(
        request=broker.groups.next_request(),
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        generation=request.generation_id_or_member_epoch,
    )
    try:
        check_id(request.group_id, may_be_empty=True)
        outcome = await broker.groups.commit(request.group_id, event, offsets)
    except GroupRefusedError as refused:
        return refused.code
    if outcome is not None:
        return outcome
    # A member of a generation asks for a group that does not exist. Version 9 has an error of its own for that.
    return ErrorCode.GROUP_ID_NOT_FOUND if header.api_version >= 9 else ErrorCode.ILLEGAL_GENERATION
