"""Offsets that transactions commit for groups (TxnOffsetCommit).

Each statement of a call waits for the answer to the one before, and the first takes the lock of the transaction. So a
call whose answer was lost either holds that lock, until its COMMIT ends, or will never go on: it cannot run after a
newer call, nor land in the next transaction of a client whose epoch stays the same.

What came later counts (`written_ms`, `committed_ms`). A clock cannot tell what came later within a millisecond, and may
be set back. So an offset of a transaction is written with a time above all that is known for its place, and the end
lets it replace only offsets of an earlier time.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from metadata.contract.groups import OffsetPlace
from metadata.postgres.groups.offsets import begin_writing_offsets
from metadata.postgres.rows import INTS, UUIDS, statement
from metadata.postgres.tables import GROUPS, Utf8
from metadata.postgres.transactions.begin import begin, find_locked
from metadata.postgres.transactions.tables import TRANSACTION_OFFSETS
from metadata.transactions.contract import TransactionalOffsets, TransactionalOffsetsResult
from metadata.transactions.rules import judge_producer
from wire.error_codes import ErrorCode

_KNOWN = statement(
    """SELECT w.topic_id, w.partition, greatest(clock_ms(), g.committed_ms + 1, (
        SELECT max(x.written_ms) + 1 FROM transaction_offsets x
        WHERE x.group_id = :group_id AND x.topic_id = w.topic_id AND x.partition = w.partition
    )) AS written_ms
    FROM unnest(:topic_ids, :partitions) AS w (topic_id, partition)
    JOIN partitions p ON p.topic_id = w.topic_id AND p.partition = w.partition
    LEFT JOIN group_offsets g ON g.group_id = :group_id AND g.topic_id = w.topic_id AND g.partition = w.partition""",
    group_id=Utf8,
    topic_ids=UUIDS,
    partitions=INTS,
).columns(topic_id=sa.Uuid)


async def commit_offsets(connection: AsyncConnection, request: TransactionalOffsets) -> TransactionalOffsetsResult:
    """See `TransactionMetadata.commit_offsets`."""
    row = await find_locked(connection, request.transactional_id)
    error = judge_producer(row, request.producer_id, request.producer_epoch)
    if row is None or error:
        return TransactionalOffsetsResult(error=int(error))
    group_id = request.group.group_id
    if not request.adds and not (row.is_ongoing and group_id in row.group_ids):
        return TransactionalOffsetsResult(error=int(ErrorCode.INVALID_TXN_STATE))
    lock = sa.select(GROUPS.c.epoch).where(GROUPS.c.group_id == group_id).with_for_update(key_share=True)
    if (await connection.execute(lock)).scalar_one_or_none() != request.group.epoch:
        return TransactionalOffsetsResult(error=0, fenced=True)
    if request.adds:
        await begin(connection, request.transactional_id, row, client_version=2, group_id=group_id)
    # After the lock that the deletion of a topic takes alone: no partition goes away from here on.
    await begin_writing_offsets(connection)
    wanted = {each.place: each for each in request.offsets}
    places = {"topic_ids": [at.topic_id for at in wanted], "partitions": [at.partition for at in wanted]}
    found = await connection.execute(_KNOWN, {"group_id": group_id, **places})
    written_ms = {OffsetPlace(row.topic_id, row.partition): row.written_ms for row in found}
    rows = [
        {
            "producer_id": request.producer_id,
            "group_id": group_id,
            "topic_id": place.topic_id,
            "partition": place.partition,
            "committed_offset": each.offset,
            "leader_epoch": each.leader_epoch,
            "metadata": each.metadata,
            "written_ms": written_ms[place],
        }
        for place, each in wanted.items()
        if place in written_ms
    ]
    for some in (rows[at : at + 1_000] for at in range(0, len(rows), 1_000)):
        made = insert(TRANSACTION_OFFSETS).values(some)
        values = {name: made.excluded[name] for name in ("committed_offset", "leader_epoch", "metadata", "written_ms")}
        keys = ["producer_id", "group_id", "topic_id", "partition"]
        await connection.execute(made.on_conflict_do_update(index_elements=keys, set_=values))
    return TransactionalOffsetsResult(error=0, unknown=frozenset(wanted.keys() - written_ms.keys()))
