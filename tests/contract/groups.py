"""Owners, records and offsets for the tests of the groups' contract."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from metadata.contract.leases import AgentAddress, WriterLease
from metadata.contract.store import MetadataStore
from metadata.groups.contract import (
    GroupLease,
    GroupRecord,
    MemberRecord,
    OffsetCommitBatch,
    OffsetPlace,
    OffsetToCommit,
    TakenGroup,
)
from metadata.rules.invariants.groups import check_grp_1, check_grp_2, check_grp_3

NOWHERE = uuid.UUID(int=1)
"""A topic id that no topic has."""
STRANGE = "a\0b \udc80 \U0001f600 é"
"""A text that Kafka's protocol or a caller may contain, but Postgres's type `text` refuses."""


def member(member_id: str = "m", **more: Any) -> MemberRecord:
    values: dict[str, Any] = {
        "instance_id": None,
        "client_id": "client",
        "client_host": "/127.0.0.1",
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 60_000,
        "protocols": (("range", b"\0subscription"),),
        "assignment": b"\0assignment",
        **more,
    }
    return MemberRecord(member_id=member_id, **values)


def record(*members: MemberRecord, generation: int = 1, topics: Sequence[str] | None = ()) -> GroupRecord:
    """The record of a consumer group. It is subscribed to `topics` if it has members."""
    return GroupRecord(
        protocol_type="consumer",
        generation=generation,
        protocol="range" if members else None,
        leader=members[0].member_id if members else None,
        members=members,
        subscribed_topics=frozenset(topics) if members and topics is not None else None,
    )


def at(topic_id: uuid.UUID, partition: int = 0) -> OffsetPlace:
    return OffsetPlace(topic_id, partition)


def to_commit(place: OffsetPlace, offset: int, metadata: str = "", *, leader_epoch: int = -1) -> OffsetToCommit:
    return OffsetToCommit(place=place, offset=offset, leader_epoch=leader_epoch, metadata=metadata)


def batch_of(lease: GroupLease, offsets: Mapping[OffsetPlace, int]) -> OffsetCommitBatch:
    return OffsetCommitBatch(lease=lease, offsets=[to_commit(place, offset) for place, offset in offsets.items()])


@dataclass(slots=True)
class Owner:
    """An agent that owns groups."""

    service: MetadataStore
    lease: WriterLease

    @classmethod
    async def register(cls, service: MetadataStore, port: int = 9092) -> Owner:
        return cls(service=service, lease=await registered(service, port))

    async def take(self, group_id: str = "g") -> TakenGroup:
        taken = await self.service.groups.take_group(group_id, owner=self.lease, create=True)
        assert taken is not None
        return taken

    async def lease_of(self, group_id: str = "g") -> GroupLease:
        return (await self.take(group_id)).lease

    async def commit(self, lease: GroupLease, offsets: Mapping[OffsetPlace, int]) -> None:
        """Commit offsets, and check that they were neither fenced nor unknown."""
        (result,) = await self.service.groups.commit_offsets([batch_of(lease, offsets)])
        assert (result.fenced, result.unknown) == (False, frozenset())


async def registered(service: MetadataStore, port: int = 9092, *, instead_of: WriterLease | None = None) -> WriterLease:
    return await service.agents.register_agent(AgentAddress(host="agent", port=port), instead_of=instead_of)


async def committed(service: MetadataStore, group_id: str = "g") -> dict[OffsetPlace, int]:
    return {place: found.offset for place, found in (await service.groups.offsets(group_id)).items()}


async def violations(service: MetadataStore) -> list[str]:
    """Messages of every violation of the invariants of groups."""
    view = await service.operators.groups_view()
    return [each.message for check in (check_grp_1, check_grp_2, check_grp_3) for each in check(view)]
