"""The members of a group and the facts that follow from them alone: identities, common protocols, waiting requests.

Rules of ClassicGroup and ClassicGroupMember. Sums are updated as members come and go, so that a join needs no walk over
all the others.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from agents.groups.subscription import subscribed_topics
from metadata.groups.contract import MemberRecord
from wire.error_codes import ErrorCode

MEMBER_BYTES = 2_000
"""Approximate memory of one member without its texts, metadata and assignment."""


@dataclass(slots=True, kw_only=True, eq=False)
class Member:
    """Its fields change only by its own operations. Once it is in `Members`, only `Members` calls those that change a
    sum: joins, protocols, the assignment and the weight."""

    member_id: str
    instance_id: str | None
    """Set for a static member: it stays a member while its process restarts."""
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes = b""
    weighed: int = 0
    """The bytes it counts for in the sum of `Members`."""
    parked_join: int | None = None
    """The number of the waiting request."""
    parked_sync: int | None = None
    is_new: bool = False
    """Its first join is not answered yet: it may not know its own id, so it sends no heartbeats."""

    @property
    def waits(self) -> bool:
        return self.parked_join is not None or self.parked_sync is not None

    @property
    def bytes(self) -> int:
        """Approximate memory, counting everything that a client can make long."""
        texts = (self.member_id, self.instance_id or "", self.client_id, self.client_host)
        size = MEMBER_BYTES + sum(sys.getsizeof(text) for text in texts) + len(self.assignment)
        return size + sum(sys.getsizeof(name) + sys.getsizeof(metadata) for name, metadata in self.protocols)

    def metadata(self, protocol: str | None) -> bytes:
        """Its metadata under this protocol; b"" if it does not support it."""
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    # ---- changes

    def park_join(self, request: int) -> int | None:
        """Returns the earlier request that waited until now; the caller must answer it."""
        older, self.parked_join = self.parked_join, request
        return older

    def unpark_join(self) -> int | None:
        """Returns the waiting request; the caller must answer it."""
        request, self.parked_join = self.parked_join, None
        return request

    def park_sync(self, request: int) -> None:
        self.parked_sync = request

    def unpark_sync(self) -> int | None:
        """Returns the waiting request; the caller must answer it."""
        request, self.parked_sync = self.parked_sync, None
        return request

    def end_first_join(self) -> None:
        """Its first join is answered: it knows its id."""
        self.is_new = False

    def change_protocols(self, protocols: tuple[tuple[str, bytes], ...]) -> None:
        self.protocols = protocols

    def change_timeouts(self, session_timeout_ms: int, rebalance_timeout_ms: int) -> None:
        self.session_timeout_ms = session_timeout_ms
        self.rebalance_timeout_ms = rebalance_timeout_ms

    def assign(self, assignment: bytes) -> None:
        self.assignment = assignment

    def weigh(self) -> int:
        """Weigh the member again; returns the bytes by which it has grown."""
        before, size = self.weighed, self.bytes
        self.weighed = size
        return size - before

    def unweigh(self) -> int:
        """The member counts for nothing any longer; returns the bytes it counted for."""
        before, self.weighed = self.weighed, 0
        return before

    # ---- as a record

    def record(self, assignment: bytes) -> MemberRecord:
        return MemberRecord(
            member_id=self.member_id,
            instance_id=self.instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            session_timeout_ms=self.session_timeout_ms,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            protocols=self.protocols,
            assignment=assignment,
        )


def member_of(record: MemberRecord) -> Member:
    return Member(
        member_id=record.member_id,
        instance_id=record.instance_id,
        client_id=record.client_id,
        client_host=record.client_host,
        session_timeout_ms=record.session_timeout_ms,
        rebalance_timeout_ms=record.rebalance_timeout_ms,
        protocols=record.protocols,
        assignment=record.assignment,
    )


class Members:
    """In the order in which they joined."""

    def __init__(self) -> None:
        self._by_id: dict[str, Member] = {}
        self._by_instance: dict[str, Member] = {}
        self._support: Counter[str] = Counter()
        self._joins_parked = 0
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._by_id.values())

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._by_id

    def get(self, member_id: str) -> Member | None:
        return self._by_id.get(member_id)

    def of_instance(self, instance_id: str) -> Member | None:
        return self._by_instance.get(instance_id)

    def known(self, member_id: str, instance_id: str | None) -> Member | ErrorCode:
        """The member that a request names, or the error why it is not one (ClassicGroup.validateMember): if another
        member holds the instance id by now, the sender is fenced."""
        if instance_id is not None:
            holder = self._by_instance.get(instance_id)
            if holder is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            # Fenced comes before unknown: the old process must end, not join again and throw the new one out.
            if holder.member_id != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return self._by_id.get(member_id, ErrorCode.UNKNOWN_MEMBER_ID)

    # ---- coming and going

    def add(self, member: Member) -> None:
        """Raises ValueError if its id or its instance id is taken."""
        if member.member_id in self._by_id:
            raise ValueError(f"{member.member_id!r} is a member already")
        if member.instance_id is not None:
            if member.instance_id in self._by_instance:
                raise ValueError(f"instance {member.instance_id!r} has a member already")
            self._by_instance[member.instance_id] = member
        self._by_id[member.member_id] = member
        # A set: a member that names a protocol twice supports it once.
        self._support.update({name for name, _ in member.protocols})
        self._joins_parked += member.parked_join is not None
        self._bytes += member.weigh()

    def remove(self, member: Member) -> None:
        del self._by_id[member.member_id]
        if member.instance_id is not None:
            del self._by_instance[member.instance_id]
        self._withdraw(member)
        self._joins_parked -= member.parked_join is not None
        self._bytes -= member.unweigh()

    def clear(self) -> None:
        self._by_id.clear()
        self._by_instance.clear()
        self._support.clear()
        self._joins_parked = 0
        self._bytes = 0

    def change_protocols(self, member: Member, protocols: tuple[tuple[str, bytes], ...]) -> None:
        self._withdraw(member)
        member.change_protocols(protocols)
        self._support.update({name for name, _ in protocols})
        self._bytes += member.weigh()

    def assign(self, member: Member, assignment: bytes) -> None:
        member.assign(assignment)
        self._bytes += member.weigh()

    @property
    def bytes(self) -> int:
        """Approximate memory of all members."""
        return self._bytes

    # ---- who waits

    def park_join(self, member: Member, request: int) -> int | None:
        """Returns the member's earlier request that waited until now; the caller must answer it."""
        older = member.park_join(request)
        self._joins_parked += older is None
        return older

    def unpark_join(self, member: Member) -> int | None:
        """Returns the waiting request; the caller must answer it."""
        request = member.unpark_join()
        self._joins_parked -= request is not None
        return request

    @property
    def joins_parked(self) -> int:
        return self._joins_parked

    @property
    def all_wait_to_join(self) -> bool:
        return self._joins_parked == len(self._by_id)

    # ---- what all of them say

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest one of all members; 0 without members."""
        return max([0, *(member.rebalance_timeout_ms for member in self)])

    def share_one_of(self, protocols: Iterable[tuple[str, bytes]]) -> bool:
        """Every member supports at least one of these."""
        return any(self._support[name] == len(self._by_id) for name, _ in protocols)

    def voted_protocol(self) -> str | None:
        """The protocol that most members prefer among those that all members support. If several are equal, the
        one whose first voter joined earliest wins."""
        votes: Counter[str] = Counter()
        for member in self:
            choice = next((name for name, _ in member.protocols if self._support[name] == len(self._by_id)), None)
            if choice is not None:
                votes[choice] += 1
        # `max` takes the first of equals, and a Counter keeps the order of first votes.
        return max(votes, key=lambda name: votes[name]) if votes else None

    def subscribed_topics(self, protocol: str | None) -> frozenset[str] | None:
        """The topics of all members together; None if one member's cannot be read, and without members."""
        return subscribed_topics(member.metadata(protocol) for member in self) if self._by_id else None

    def _withdraw(self, member: Member) -> None:
        for name in {name for name, _ in member.protocols}:
            self._support[name] -= 1
            if not self._support[name]:
                del self._support[name]
