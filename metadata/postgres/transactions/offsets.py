"""Offsets that transactions commit for groups (TxnOffsetCommit).

Each statement of a call waits for the answer to the one before, and the first takes the locks of the transactions. So a
call whose answer was lost either holds those locks, until its COMMIT ends, or will never go on: it cannot run after a
newer call, nor land in the next transaction of a client whose epoch stays the same.

What came later counts (`written_ms`, `committed_ms`). A clock cannot tell what came later within a millisecond, and may
be set back. So an offset of a transaction is written with a time above all that is known for its place, and the end
lets it replace only offsets of an earlier time.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, TypeAlias

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, insert
from sqlalchemy.ext.asyncio import AsyncConnection

from metadata.groups.contract import OffsetPlace
from metadata.postgres.groups.offsets import begin_writing_offsets
from metadata.postgres.rows import INTS, UUIDS, any_of, now_ms, statement
from metadata.postgres.tables import GROUPS, Utf8
from metadata.postgres.transactions.begin import find_all_locked, store_all
from metadata.postgres.transactions.tables import TRANSACTION_OFFSETS
from metadata.transactions.contract import TransactionalOffsets, TransactionalOffsetsResult
from metadata.transactions.rules import Transaction, held

_Place: TypeAlias = tuple[str, OffsetPlace]
"""Of a group."""

_KNOWN = statement(
    """SELECT w.group_id, w.topic_id, w.partition, greatest(clock_ms(), g.committed_ms + 1, (
        SELECT max(x.written_ms) + 1 FROM transaction_offsets x
        WHERE x.group_id = w.group_id AND x.topic_id = w.topic_id AND x.partition = w.partition
    )) AS written_ms
    FROM unnest(:group_ids, :topic_ids, :partitions) AS w (group_id, topic_id, partition)
    JOIN partitions p ON p.topic_id = w.topic_id AND p.partition = w.partition
    LEFT JOIN group_offsets g
        ON g.group_id = w.group_id AND g.topic_id = w.topic_id AND g.partition = w.partition""",
    group_ids=ARRAY(Utf8),
    topic_ids=UUIDS,
    partitions=INTS,
).columns(group_id=Utf8, topic_id=sa.Uuid)


async def commit_offsets(
    connection: AsyncConnection, requests: Sequence[TransactionalOffsets]
) -> Sequence[TransactionalOffsetsResult]:
    """See `TransactionMetadata.commit_offsets`."""
    stored = await find_all_locked(connection, [each.transactional_id for each in requests])
    epochs = await _lock_groups(connection, {each.group.group_id for each in requests})
    now = await now_ms(connection)
    rows, refused = dict(stored), dict[int, TransactionalOffsetsResult]()
    for number, each in enumerate(requests):
        row = held(rows.get(each.transactional_id), epochs.get(each.group.group_id), each, now_ms=now)
        if isinstance(row, Transaction):
            rows[each.transactional_id] = row
        else:
            refused[number] = row
    await store_all(connection, {id_: row for id_, row in rows.items() if row != stored[id_]})
    accepted = [each for number, each in enumerate(requests) if number not in refused]
    known = await _write(connection, accepted) if accepted else frozenset[_Place]()
    return [
        refused.get(number)
        or TransactionalOffsetsResult(
            error=0,
            unknown=frozenset(at.place for at in each.offsets if (each.group.group_id, at.place) not in known),
        )
        for number, each in enumerate(requests)
    ]


async def _lock_groups(connection: AsyncConnection, group_ids: Collection[str]) -> dict[str, int]:
    """Their epochs, once their rows are locked."""
    lock = sa.select(GROUPS.c.group_id, GROUPS.c.epoch).where(any_of(GROUPS.c.group_id, group_ids))
    rows = await connection.execute(lock.order_by(GROUPS.c.group_id).with_for_update(key_share=True))
    return {row.group_id: row.epoch for row in rows}


async def _write(connection: AsyncConnection, requests: Sequence[TransactionalOffsets]) -> Collection[_Place]:
    """The places that exist."""
    # After the lock that the deletion of a topic takes alone: no partition goes away from here on.
    await begin_writing_offsets(connection)
    wanted = {(each.group.group_id, at.place) for each in requests for at in each.offsets}
    places = {
        "group_ids": [group_id for group_id, _ in wanted],
        "topic_ids": [place.topic_id for _, place in wanted],
        "partitions": [place.partition for _, place in wanted],
    }
    next_ms: dict[_Place, int] = {
        (row.group_id, OffsetPlace(row.topic_id, row.partition)): row.written_ms
        for row in await connection.execute(_KNOWN, places)
    }
    rows: dict[tuple[int, _Place], dict[str, Any]] = {}
    for request in requests:
        group_id = request.group.group_id
        for place, each in {at.place: at for at in request.offsets}.items():
            written_ms = next_ms.get((group_id, place))
            if written_ms is None:
                continue
            next_ms[group_id, place] = written_ms + 1
            rows[request.producer_id, (group_id, place)] = {
                "producer_id": request.producer_id,
                "group_id": group_id,
                "topic_id": place.topic_id,
                "partition": place.partition,
                "committed_offset": each.offset,
                "leader_epoch": each.leader_epoch,
                "metadata": each.metadata,
                "written_ms": written_ms,
            }
    values = list(rows.values())
    for some in (values[at : at + 1_000] for at in range(0, len(values), 1_000)):
        made = insert(TRANSACTION_OFFSETS).values(some)
        replaced = {
            name: made.excluded[name] for name in ("committed_offset", "leader_epoch", "metadata", "written_ms")
        }
        keys = ["producer_id", "group_id", "topic_id", "partition"]
        await connection.execute(made.on_conflict_do_update(index_elements=keys, set_=replaced))
    return next_ms.keys()
