"""The errors with which both metadata stores refuse a call: one text each. Pure.

Errors of jobs and of the server's history are in `metadata/rules/jobs.py` and `metadata/rules/history.py`, beside their
rules; the error for an unknown topic name is in `metadata/contract/readers.py`.

`commit_l0_v1.sql` decides the commit of an L0 file inside Postgres and words its reasons there. The reasons below are
its texts, for the memory store; the contract tests hold both stores to the same bytes.
"""

from __future__ import annotations

import uuid

from metadata.contract.l0_commit import CommitL0, CommitRefusedError
from metadata.contract.leases import (
    ALIVE_MS,
    LEASE_MS,
    AddressTakenError,
    AgentAddress,
    WriterFencedError,
    WriterLease,
)
from metadata.contract.topics import (
    InvalidOffsetError,
    InvalidPartitionsError,
    NotCompactedError,
    TooManyPartitionsError,
    TopicExistsError,
    UnknownTopicError,
)
from metadata.groups.contract import GroupFencedError, GroupLease
from metadata.rules.jobs import holds
from metadata.transactions.contract import EndTransactions

# ---- leases


def agent_lease_ended(lease: WriterLease) -> WriterFencedError:
    """Another agent took the identity, or the lease was ended."""
    return WriterFencedError(f"writer {lease.writer_id} epoch {lease.epoch} has no lease any more")


def check_not_taken(
    address: AgentAddress, holder: WriterLease, lease_until_ms: int, now_ms: int, *, instead_of: WriterLease | None
) -> None:
    """Raises AddressTakenError if `holder` may still run. `lease_until_ms` is the end of its lease."""
    beat_ms = lease_until_ms - LEASE_MS
    # A lease from before the store's clock went back is no sign of life, here as in `live_agents`.
    if holder == instead_of or now_ms >= beat_ms + ALIVE_MS or not holds(lease_until_ms, now_ms, LEASE_MS):
        return
    place = f"{address.host}:{address.port}"
    raise AddressTakenError(
        f"{place} is held by writer {holder.writer_id} epoch {holder.epoch}, which may still run",
        holder=holder,
        beat_ms=beat_ms,
        now_ms=now_ms,
    )


def former_until(holder: WriterLease, lease_until_ms: int, before_ms: int, *, instead_of: WriterLease | None) -> int:
    """Until when a process may act from which the address was taken.

    It gave no lease back, so it may only be cut off from the store; then it judges by the users and ACLs that it knew
    until its lease ends. `before_ms`: the same of processes before it. `instead_of`, the caller's own lease, is no
    other process.
    """
    return before_ms if holder == instead_of else max(before_ms, lease_until_ms)


def compactor_lease_ended(lease: WriterLease) -> WriterFencedError:
    return WriterFencedError(f"compactor {lease.writer_id} has no lease any more")


def owner_not_live(owner: WriterLease) -> WriterFencedError:
    """Only one of `live_agents` may take a group."""
    return WriterFencedError(f"writer {owner.writer_id} epoch {owner.epoch} has no running lease, or drains")


def group_fenced(lease: GroupLease) -> GroupFencedError:
    return GroupFencedError(f"group {lease.group_id!r} is no longer at epoch {lease.epoch}")


# ---- topics


def topic_exists(name: str) -> TopicExistsError:
    return TopicExistsError(f"topic {name!r} exists already")


def unknown_topic_id(topic_id: uuid.UUID) -> UnknownTopicError:
    return UnknownTopicError(f"there is no topic with id {topic_id}")


def unknown_partition(partition_id: int) -> UnknownTopicError:
    return UnknownTopicError(f"there is no partition {partition_id}")


def not_more_partitions(name: str, present: int, count: int) -> InvalidPartitionsError:
    return InvalidPartitionsError(f"topic {name!r} has {present} partitions; {count} is not more")


def check_cluster_partitions(present: int, added: int, partitions_max: int | None) -> None:
    """Raises TooManyPartitionsError. `present`: of all topics."""
    if partitions_max is not None and present + added > partitions_max:
        raise TooManyPartitionsError(
            f"all topics together have {present} partitions; {added} more would be above cluster.partitions.max"
            f" ({partitions_max}): ask for fewer, delete topics, or raise the setting of the agents"
        )


def offset_outside(offset: int, next_offset: int) -> InvalidOffsetError:
    return InvalidOffsetError(f"offset {offset} is outside [0, {next_offset}]")


def not_compacted(name: str) -> NotCompactedError:
    return NotCompactedError(f"topic {name!r} is not compacted", remedy="set cleanup.policy=compact")


# ---- the commit of an L0 file


def commit_fenced(key: str, reason: object) -> WriterFencedError:
    return WriterFencedError(_refused(key, reason))


def commit_refused(key: str, reason: object) -> CommitRefusedError:
    return CommitRefusedError(_refused(key, reason))


def _refused(key: str, reason: object) -> str:
    return f"commit of {key!r} refused: {reason}"


def other_epoch(lease: WriterLease, present_epoch: int | None) -> str:
    """`present_epoch`: the writer's epoch in the store; None: no such writer was ever registered."""
    if present_epoch is None:
        return f"writer {lease.writer_id} does not exist"
    return f"writer {lease.writer_id} is at epoch {present_epoch}, not {lease.epoch}"


def seq_used(request: CommitL0 | EndTransactions, last_seq: int) -> str:
    return f"seq {request.seq} of writer {request.lease.writer_id} is not above its last, {last_seq}"


def key_aborted(key: str) -> str:
    return f"key {key} was aborted"
