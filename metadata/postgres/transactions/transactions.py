"""Transactions in Postgres. `ends.py` ends them.

Order of locks: the writer's row, only in an end; rows of `transactions` by producer id; rows of `groups` by id; rows of
`watermarks` by id; the lock of all offsets, shared. Everything but the commit of a file locks the row of `transactions`
first, so partitions, groups and offsets enter a transaction that cannot end meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, insert
from sqlalchemy.ext.asyncio import AsyncConnection

from metadata.contract.errors import MetadataUnavailableError
from metadata.contract.leases import WriterLease
from metadata.postgres.connection import (
    ATTEMPTS,
    CONNECTION_ERRORS,
    RETRIABLE_SQLSTATES,
    Database,
    DedicatedConnection,
    error_of,
    sqlstate_of,
)
from metadata.postgres.groups.groups import check_alive
from metadata.postgres.rows import LONGS, now_ms, statement
from metadata.postgres.tables import AGENTS, WRITERS, Utf8
from metadata.postgres.transactions.begin import begin, columns, find_locked
from metadata.postgres.transactions.ends import EndCommitter
from metadata.postgres.transactions.offsets import commit_offsets
from metadata.postgres.transactions.tables import TRANSACTION_PARTITIONS, TRANSACTIONS
from metadata.postgres.transactions.using import use_transactions
from metadata.rules.refusals import agent_lease_ended
from metadata.transactions.contract import (
    EndTransactions,
    Entered,
    Entry,
    InitProducer,
    OngoingTransactions,
    OpenTransaction,
    ProducerInitialised,
    TransactionalOffsets,
    TransactionalOffsetsResult,
    TransactionInfo,
    TransactionLease,
    TransactionsEnded,
    TransactionState,
)
from metadata.transactions.rules import check_transactional_id, initialised, of_possible_epochs, refused
from runtime.errors import BugError
from wire.error_codes import ErrorCode

NOW_MS = sa.text("clock_ms()")
MARKERS_HOST = "txn:"
"""Before the host of an agent: the address of its writer of markers."""
EXPIRED_MAX = 10_000
_NEXT_EPOCH = sa.text("nextval('transaction_epochs')")
_ENTER = "SELECT * FROM enter_transactions_v1($1, $2, $3, $4, $5, $6)"
_OF = TRANSACTIONS.c
_PARTITIONS = statement(
    """SELECT producer_id, array_agg(partition_id ORDER BY partition_id) AS partition_ids,
        array_agg(first_offset ORDER BY partition_id) AS first_offsets
    FROM transaction_partitions WHERE producer_id = ANY (:producer_ids) GROUP BY producer_id""",
    producer_ids=LONGS,
)
_OPEN = statement(
    """SELECT p.partition_id, p.producer_id, p.first_offset, coalesce(t.coordinator_epoch, -1) AS coordinator_epoch
    FROM transaction_partitions p LEFT JOIN transactions t ON t.producer_id = p.producer_id
    WHERE p.partition_id = ANY (:partition_ids) AND p.first_offset IS NOT NULL
    ORDER BY p.partition_id, p.producer_id""",
    partition_ids=ARRAY(sa.Integer),
)
# A row with data for each partition of an open transaction: the rows are few, and the first of a partition decides.
_ONGOING = sa.text(
    f"""SELECT count(*), coalesce(clock_ms() - min(started_ms), 0), coalesce((
        SELECT max(w.next_offset - greatest(p.first_offset, l.log_start_offset))
        FROM transaction_partitions p JOIN watermarks w ON w.partition_id = p.partition_id
        JOIN log_starts l ON l.partition_id = p.partition_id WHERE p.first_offset IS NOT NULL
    ), 0) FROM transactions WHERE state = {int(TransactionState.ONGOING)}"""  # noqa: S608 - our own text
)
_EXPIRE = statement(
    """DELETE FROM transactions WHERE transactional_id IN (
        SELECT transactional_id FROM transactions WHERE state <> 1 AND updated_ms <= :before_ms
        ORDER BY producer_id LIMIT :limit FOR UPDATE SKIP LOCKED
    )""",
    before_ms=sa.BigInteger,
    limit=sa.Integer,
)


class PostgresTransactions:
    """Implements `TransactionMetadata`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._ends = EndCommitter(database)
        self._entering = DedicatedConnection(database, "siltstone-enter")

    async def close(self) -> None:
        await self._ends.close()
        await self._entering.close()

    async def enable(self) -> bool:
        return await self._database.write(use_transactions)

    async def register_marker_writer(self, agent: WriterLease) -> WriterLease:
        async def work(connection: AsyncConnection) -> WriterLease:
            mine = (AGENTS.c.writer_id == agent.writer_id, AGENTS.c.epoch == agent.epoch)
            place = sa.select(WRITERS.c.host, WRITERS.c.port).join(AGENTS, AGENTS.c.writer_id == WRITERS.c.writer_id)
            found = (await connection.execute(place.where(*mine))).one_or_none()
            if found is None:
                raise agent_lease_ended(agent)
            made = insert(WRITERS).values(host=MARKERS_HOST + found.host, port=found.port)
            again = {"epoch": WRITERS.c.epoch + 1, "last_seq": -1}
            taken = made.on_conflict_do_update(constraint="writers_address", set_=again)
            row = (await connection.execute(taken.returning(WRITERS.c.writer_id, WRITERS.c.epoch))).one()
            return WriterLease(writer_id=row.writer_id, epoch=row.epoch)

        return await self._database.write(work)

    async def take_transaction(self, transactional_id: str, *, owner: WriterLease) -> TransactionLease | None:
        async def work(connection: AsyncConnection) -> TransactionLease | None:
            # The wait for the row is the wait for a call of the coordinator before.
            mine = {"coordinator_epoch": _NEXT_EPOCH, "owner_id": owner.writer_id}
            take = sa.update(TRANSACTIONS).where(_OF.transactional_id == transactional_id).values(mine)
            epoch = (await connection.execute(take.returning(_OF.coordinator_epoch))).scalar_one_or_none()
            await check_alive(connection, owner)  # only now: the lease may have ended during the wait for the lock
            return None if epoch is None else TransactionLease(transactional_id=transactional_id, epoch=epoch)

        return await self._database.write(work)

    async def init_producer(self, request: InitProducer, *, owner: WriterLease) -> ProducerInitialised:
        check_transactional_id(request.transactional_id)

        async def work(connection: AsyncConnection) -> ProducerInitialised:
            row = await find_locked(connection, request.transactional_id)
            if row is None and (epoch := await _insert_new(connection, request, owner)) is not None:
                await check_alive(connection, owner)
                return ProducerInitialised(
                    lease=TransactionLease(transactional_id=request.transactional_id, epoch=epoch),
                    error=0,
                    producer_id=request.new_producer_id,
                    producer_epoch=0,
                )
            if row is None:  # somebody made it meanwhile
                row = await find_locked(connection, request.transactional_id)
            if row is None:
                raise MetadataUnavailableError(f"transactional id {request.transactional_id!r} expired meanwhile")
            await check_alive(connection, owner)
            done = initialised(row, request, now_ms=await now_ms(connection))
            changed = row if isinstance(done, ErrorCode) else done
            mine = {"coordinator_epoch": _NEXT_EPOCH, "owner_id": owner.writer_id}
            store = sa.update(TRANSACTIONS).where(_OF.transactional_id == request.transactional_id)
            store = store.values({**columns(changed), **mine}).returning(_OF.coordinator_epoch)
            epoch = (await connection.execute(store)).scalar_one()
            lease = TransactionLease(transactional_id=request.transactional_id, epoch=epoch)
            if isinstance(done, ErrorCode):
                return ProducerInitialised(lease=lease, error=int(done))
            return ProducerInitialised(
                lease=lease,
                error=0,
                producer_id=done.producer_id,
                producer_epoch=done.producer_epoch,
                ongoing_txn_seq=done.txn_seq if done.is_ongoing else None,
            )

        return await self._database.write(work)

    async def enter(self, entries: Sequence[Entry], *, partitions_max: int) -> Sequence[Entered]:
        if not entries:
            return []
        entries = of_possible_epochs(entries)
        async with self._entering.lock:
            connection = await self._entering.get()
            for attempt in range(ATTEMPTS):
                try:
                    ids, *others = (list(column) for column in zip(*entries, strict=True))
                    names = [str(each).encode("utf-8", "surrogatepass") for each in ids]
                    rows = await connection.fetch(_ENTER, names, *others, partitions_max)
                    return [Entered(row["error"], row["txn_seq"]) for row in rows]
                except CONNECTION_ERRORS as error:
                    if sqlstate_of(error) in RETRIABLE_SQLSTATES and attempt + 1 < ATTEMPTS:
                        await self._database.back_off(attempt)
                        continue
                    self._entering.drop()
                    raise error_of(error) from error
                except BaseException:
                    self._entering.drop()  # cancelled: the statement may still run
                    raise
        raise BugError("unreachable: the last attempt returns or raises")

    async def add_partitions(
        self,
        lease: TransactionLease,
        *,
        producer_id: int,
        producer_epoch: int,
        partition_ids: Sequence[int],
        partitions_max: int,
    ) -> int:
        async def work(connection: AsyncConnection) -> int:
            row = await find_locked(connection, lease.transactional_id)
            error = refused(row, lease, producer_id, producer_epoch)
            if row is None or error:
                return error
            known = sa.select(TRANSACTION_PARTITIONS.c.partition_id).where(
                TRANSACTION_PARTITIONS.c.producer_id == producer_id
            )
            present = set((await connection.execute(known)).scalars())
            new = sorted(set(partition_ids) - present)
            if len(present) + len(new) > partitions_max:
                return int(ErrorCode.TRANSACTION_ABORTABLE)
            begun = await begin(connection, lease.transactional_id, row, client_version=1)
            if new:
                rows = [
                    {
                        "partition_id": partition_id,
                        "producer_id": producer_id,
                        "epoch": begun.producer_epoch,
                        "txn_seq": begun.txn_seq,
                    }
                    for partition_id in new
                ]
                await connection.execute(sa.insert(TRANSACTION_PARTITIONS), rows)
            return 0

        return await self._database.write(work)

    async def add_group(self, lease: TransactionLease, *, producer_id: int, producer_epoch: int, group_id: str) -> int:
        async def work(connection: AsyncConnection) -> int:
            row = await find_locked(connection, lease.transactional_id)
            error = refused(row, lease, producer_id, producer_epoch)
            if row is None or error:
                return error
            await begin(connection, lease.transactional_id, row, client_version=1, group_id=group_id)
            return 0

        return await self._database.write(work)

    async def commit_offsets(self, requests: Sequence[TransactionalOffsets]) -> Sequence[TransactionalOffsetsResult]:
        return await self._database.write(lambda connection: commit_offsets(connection, requests))

    async def end_transactions(self, request: EndTransactions) -> TransactionsEnded:
        return await self._ends.end(request)

    async def overdue(self, *, owner_id: int | None, overdue_ms: int, limit: int = 1_000) -> Sequence[TransactionInfo]:
        late = _OF.deadline_ms <= sa.func.clock_ms() - overdue_ms
        query = sa.select(TRANSACTIONS).where(_OF.state == int(TransactionState.ONGOING), late)
        if owner_id is not None:
            query = query.where(_OF.owner_id == owner_id)
        query = query.order_by(_OF.deadline_ms, _OF.transactional_id).limit(limit)

        async def work(connection: AsyncConnection) -> Sequence[TransactionInfo]:
            return [_info(row, {}) for row in await connection.execute(query)]

        return await self._database.read(work)

    async def transactions(
        self, transactional_ids: Sequence[str] | None = None, *, owner_id: int | None = None
    ) -> Sequence[TransactionInfo]:
        query = sa.select(TRANSACTIONS).order_by(_OF.transactional_id)
        if transactional_ids is not None:
            query = query.where(_OF.transactional_id == sa.func.any(sa.literal(list(transactional_ids), ARRAY(Utf8))))
        if owner_id is not None:
            query = query.where(_OF.owner_id == owner_id)
        return await self._whole(query)

    async def transactions_of(self, producer_ids: Sequence[int]) -> Sequence[TransactionInfo]:
        mine = _OF.producer_id == sa.func.any(sa.literal(list(producer_ids), LONGS))
        return await self._whole(sa.select(TRANSACTIONS).where(mine).order_by(_OF.transactional_id))

    async def list_transactions(self, *, after: str | None, limit: int) -> Sequence[TransactionInfo]:
        query = sa.select(TRANSACTIONS).order_by(_OF.transactional_id).limit(limit)
        if after is not None:
            query = query.where(_OF.transactional_id > after)

        async def work(connection: AsyncConnection) -> Sequence[TransactionInfo]:
            return [_info(row, {}) for row in await connection.execute(query)]

        return await self._database.read(work)

    async def ongoing(self) -> OngoingTransactions:
        async def work(connection: AsyncConnection) -> OngoingTransactions:
            return OngoingTransactions(*(await connection.execute(_ONGOING)).one())

        return await self._database.read(work)

    async def _whole(self, query: sa.Select[Any]) -> Sequence[TransactionInfo]:
        """With their partitions."""

        return await self._database.read(lambda connection: read_whole(connection, query), repeatable=True)

    async def open_transactions(self, partition_ids: Sequence[int]) -> Sequence[tuple[OpenTransaction, int]]:
        async def work(connection: AsyncConnection) -> Sequence[tuple[OpenTransaction, int]]:
            rows = await connection.execute(_OPEN, {"partition_ids": list(partition_ids)})
            return [
                (OpenTransaction(row.partition_id, row.producer_id, row.first_offset), row.coordinator_epoch)
                for row in rows
            ]

        return await self._database.read(work)

    async def expire_transactional_ids(self, *, expiration_ms: int) -> int:
        async def work(connection: AsyncConnection) -> int:
            before_ms = await now_ms(connection) - expiration_ms
            gone = await connection.execute(_EXPIRE, {"before_ms": before_ms, "limit": EXPIRED_MAX})
            return gone.rowcount

        return await self._database.write(work)


async def read_whole(connection: AsyncConnection, query: sa.Select[Any]) -> Sequence[TransactionInfo]:
    """The rows of `transactions` that the query asks for, with their partitions. Read within one snapshot."""
    rows = (await connection.execute(query)).all()
    found = await connection.execute(_PARTITIONS, {"producer_ids": [row.producer_id for row in rows]})
    partitions = {each.producer_id: dict(zip(each.partition_ids, each.first_offsets, strict=True)) for each in found}
    return [_info(row, partitions.get(row.producer_id, {})) for row in rows]


async def _insert_new(connection: AsyncConnection, request: InitProducer, owner: WriterLease) -> int | None:
    """The coordinator's epoch; None: the id is known."""
    first = {
        "transactional_id": request.transactional_id,
        "producer_id": request.new_producer_id,
        "producer_epoch": 0,
        "timeout_ms": request.timeout_ms,
        "updated_ms": NOW_MS,
        "owner_id": owner.writer_id,
        "coordinator_epoch": _NEXT_EPOCH,
    }
    made = insert(TRANSACTIONS).values(first).on_conflict_do_nothing(index_elements=["transactional_id"])
    return (await connection.execute(made.returning(_OF.coordinator_epoch))).scalar_one_or_none()


def _info(row: Any, partitions: dict[int, int | None]) -> TransactionInfo:
    return TransactionInfo(
        transactional_id=row.transactional_id,
        producer_id=row.producer_id,
        producer_epoch=row.producer_epoch,
        state=TransactionState(row.state),
        txn_seq=row.txn_seq,
        timeout_ms=row.timeout_ms,
        started_ms=row.started_ms,
        updated_ms=row.updated_ms,
        owner_id=row.owner_id,
        coordinator_epoch=row.coordinator_epoch,
        client_version=row.client_version,
        partitions=partitions,
        group_ids=tuple(row.group_ids),
    )
