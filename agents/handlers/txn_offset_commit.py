"""TxnOffsetCommit 0-5: offsets that count when the transaction commits. The agent of the group answers, not the one of
the transactional id: its group judges the member as for OffsetCommit (KIP-447), and the store judges the producer.

From v5 on the group enters the transaction here (KIP-890); before, by AddOffsetsToTxn.

A producer of an old epoch is answered INVALID_PRODUCER_EPOCH, not PRODUCER_FENCED, in all versions, and a group outside
of the transaction TRANSACTION_ABORTABLE where the version has it, INVALID_TXN_STATE below
(AddPartitionsToTxnManager). An empty group id is refused here (GroupCoordinatorService.commitTransactionalOffsets).
"""

from __future__ import annotations

from collections.abc import Sequence

from agents.broker import Broker
from agents.groups.checks import check_id
from agents.groups.events import CommitRequested, TransactionalProducer
from agents.groups.held import GroupRefusedError
from agents.groups.offset_commits import Outcome
from agents.handlers.offsets_to_commit import Part, answered, commit_parts, parts_of, readable
from metadata.groups.contract import OffsetToCommit
from security.acls.values import Operation, ResourceType
from wire.api import RequestHeader
from wire.error_codes import ErrorCode
from wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

_ABORTABLE_SINCE = 4
_ADDS_SINCE = 5


async def handle(broker: Broker, header: RequestHeader, request: TxnOffsetCommitRequest) -> TxnOffsetCommitResponse:
    parts = await parts_of(broker, request.topics)
    told = await _allowed(broker, request, parts)
    if told:
        await commit_parts(broker, told, lambda offsets: _commit(broker, header.api_version, request, offsets))
    topics = await answered(
        request.topics,
        parts,
        lambda index, error: TxnOffsetCommitResponsePartition(partition_index=index, error_code=error),
        lambda name, answers: TxnOffsetCommitResponseTopic(name=name, partitions=answers),
    )
    return TxnOffsetCommitResponse(topics=topics)


async def _allowed(broker: Broker, request: TxnOffsetCommitRequest, parts: Sequence[Part]) -> Sequence[Part]:
    """Those that the client may commit; the others get their errors."""
    rights = broker.rights()
    if not rights.allows(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id):
        refusal = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    elif not rights.allows(Operation.READ, ResourceType.GROUP, request.group_id):
        refusal = ErrorCode.GROUP_AUTHORIZATION_FAILED
    else:
        return await readable(rights, parts)
    for part in parts:
        part.error = refusal
    return ()


async def _commit(
    broker: Broker, version: int, request: TxnOffsetCommitRequest, offsets: Sequence[OffsetToCommit]
) -> Outcome:
    event = CommitRequested(
        request=broker.groups.next_request(),
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        generation=request.generation_id,
        producer=TransactionalProducer(
            transactional_id=request.transactional_id,
            producer_id=request.producer_id,
            producer_epoch=request.producer_epoch,
            adds=version >= _ADDS_SINCE,
        ),
    )
    try:
        check_id(request.group_id)
        outcome = await broker.groups.commit(request.group_id, event, offsets)
    except GroupRefusedError as refused:
        return refused.code
    if outcome is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if outcome is ErrorCode.INVALID_TXN_STATE and version >= _ABORTABLE_SINCE:
        return ErrorCode.TRANSACTION_ABORTABLE
    # A member of a generation asks for a group that does not exist.
    return ErrorCode.ILLEGAL_GENERATION if outcome is None else outcome
