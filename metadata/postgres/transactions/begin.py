"""The row of a transactional id, under its lock."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from metadata.postgres.rows import any_of, now_ms
from metadata.postgres.tables import Utf8
from metadata.postgres.transactions.tables import TRANSACTIONS
from metadata.transactions.contract import TransactionState
from metadata.transactions.rules import Transaction

_OF = TRANSACTIONS.c


async def find_locked(connection: AsyncConnection, transactional_id: str) -> Transaction | None:
    """Lock the row. None: there is no such id."""
    query = sa.select(TRANSACTIONS).where(_OF.transactional_id == transactional_id).with_for_update(key_share=True)
    row = (await connection.execute(query)).one_or_none()
    return None if row is None else transaction_of(row)


async def find_all_locked(connection: AsyncConnection, transactional_ids: Collection[str]) -> dict[str, Transaction]:
    """Lock the rows. Ids that do not exist are absent."""
    query = sa.select(TRANSACTIONS).where(any_of(_OF.transactional_id, set(transactional_ids)))
    rows = await connection.execute(query.order_by(_OF.producer_id).with_for_update(key_share=True))
    return {row.transactional_id: transaction_of(row) for row in rows}


async def store_all(connection: AsyncConnection, rows: Mapping[str, Transaction]) -> None:
    """The caller holds the locks of the rows."""
    if rows:
        store = sa.update(TRANSACTIONS).where(_OF.transactional_id == sa.bindparam("of_id", type_=Utf8))
        await connection.execute(store, [{"of_id": id_, **columns(row)} for id_, row in rows.items()])


async def begin(
    connection: AsyncConnection,
    transactional_id: str,
    row: Transaction,
    *,
    client_version: int,
    group_id: str | None = None,
) -> Transaction:
    """Make the transaction ongoing, with this group in it. The caller holds the row's lock."""
    begun = row.begun(client_version=client_version, now_ms=await now_ms(connection))
    if group_id is not None:
        begun = begun.joined_by(group_id)
    if begun != row:
        store = sa.update(TRANSACTIONS).where(_OF.transactional_id == transactional_id)
        await connection.execute(store.values(columns(begun)))
    return begun


def columns(row: Transaction) -> dict[str, Any]:
    return {
        "producer_id": row.producer_id,
        "producer_epoch": row.producer_epoch,
        "prev_producer_id": row.prev_producer_id,
        "last_producer_epoch": row.last_producer_epoch,
        "state": int(row.state),
        "txn_seq": row.txn_seq,
        "client_version": row.client_version,
        "timeout_ms": row.timeout_ms,
        "deadline_ms": None if row.started_ms is None else row.started_ms + row.timeout_ms,
        "started_ms": row.started_ms,
        "updated_ms": row.updated_ms,
        "group_ids": list(row.group_ids),
    }


def transaction_of(row: Any) -> Transaction:
    return Transaction(
        producer_id=row.producer_id,
        producer_epoch=row.producer_epoch,
        prev_producer_id=row.prev_producer_id,
        last_producer_epoch=row.last_producer_epoch,
        state=TransactionState(row.state),
        txn_seq=row.txn_seq,
        client_version=row.client_version,
        timeout_ms=row.timeout_ms,
        started_ms=row.started_ms,
        updated_ms=row.updated_ms,
        group_ids=tuple(row.group_ids),
        owner_id=row.owner_id,
        coordinator_epoch=row.coordinator_epoch,
    )
