"""The files that this agent has just committed, in the form in which the tail brings those of others."""

from __future__ import annotations

from metadata.contract.files import L0File
from metadata.contract.l0_commit import Committed
from metadata.contract.leases import WriterLease
from metadata.transactions.contract import EndTransactions, TransactionsEnded


def own_file(lease: WriterLease, seq: int, key: str, size_bytes: int, committed: Committed) -> L0File:
    """A file of records."""
    return L0File(
        file_id=committed.file_id,
        key=key,
        writer_id=lease.writer_id,
        epoch=lease.epoch,
        seq=seq,
        size_bytes=size_bytes,
        created_ms=committed.created_ms,
        index=committed.index,
        txn_rows=committed.txn_rows,
    )


def own_markers(request: EndTransactions, ended: TransactionsEnded) -> L0File:
    """A file of markers."""
    return L0File(
        file_id=ended.file_id,
        key=request.key,
        writer_id=request.lease.writer_id,
        epoch=request.lease.epoch,
        seq=request.seq,
        size_bytes=len(ended.inline),
        created_ms=ended.created_ms,
        index=ended.index,
        inline=ended.inline,
        txn_rows=ended.txn_rows,
    )
