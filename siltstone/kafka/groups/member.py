"""One member of a consumer group, over the classic protocol: it joins, leads if chosen, sends heartbeats, commits and
leaves.

It uses Kafka's default assignor ("range") and rebalances eagerly: it gives up all partitions before it joins again. So
it can share a group with consumers of other libraries that know "range". A member that was removed joins again as a new
member. If a coordinator dies, the request is repeated at the next one, which knows the members and generations.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

from runtime.clock import Clock
from runtime.errors import BadInputError
from siltstone.kafka.client import TIMEOUT_MS, KafkaClient, KafkaError
from siltstone.kafka.groups import range_assignor
from siltstone.kafka.groups.admin import GroupClient, check
from siltstone.kafka.groups.consumer_protocol import (
    PROTOCOL_TYPE,
    assignment,
    parse_assignment,
    parse_subscription,
    subscription,
)
from siltstone.kafka.records import TopicPartition
from wire.error_codes import ErrorCode
from wire.messages import heartbeat, join_group, leave_group, sync_group

SESSION_TIMEOUT_MS = 45_000
"""The default of Kafka's consumers since 3.0."""
REBALANCE_TIMEOUT_MS = 60_000
"""In a rebalance the other members wait this long for this member."""
HEARTBEAT_MS = 3_000
JOIN_PATIENCE_MS = 300_000 + TIMEOUT_MS
"""A join is answered when all members have joined. Members of other libraries may take five minutes (their default
max.poll.interval.ms)."""
REJOIN_MS = 100
_UNKNOWN_MEMBER = int(ErrorCode.UNKNOWN_MEMBER_ID)
_MEMBER_ID_REQUIRED = int(ErrorCode.MEMBER_ID_REQUIRED)
_JOIN_AGAIN = {int(ErrorCode.REBALANCE_IN_PROGRESS), int(ErrorCode.ILLEGAL_GENERATION), _UNKNOWN_MEMBER}

PartitionCounts = Callable[[Collection[str]], Awaitable[Mapping[str, int]]]
"""The number of partitions by topic name. A topic that does not exist is left out."""


class ForeignAssignmentError(BadInputError):
    """The leader of the group, another program, sent this member something that is not an assignment of partitions."""


class GroupMember:
    """Calls may raise KafkaError and UnavailableError. Only `beat` may run at the same time as another call."""

    def __init__(self, group: GroupClient, topics: Collection[str], counts: PartitionCounts, clock: Clock) -> None:
        self.group, self._topics, self._counts, self._clock = group, frozenset(topics), counts, clock
        self._member_id = ""
        self._assigned_counts: Mapping[str, int] | None = None
        """The number of partitions by topic that this member last assigned as leader; None if another member leads."""
        self.generation = -1

    async def join(self) -> Sequence[TopicPartition]:
        """Join, and return the partitions of this member in the new generation. Raises ForeignAssignmentError."""
        while True:
            joined = await self.group.run(self._join)
            self._member_id = joined.member_id or self._member_id
            if joined.error_code == _MEMBER_ID_REQUIRED:
                continue  # the coordinator has given this member its id: join again with it (KIP-394)
            if not self._is_refused(joined.error_code, "join"):
                # Every member must sync, but only the leader sends assignments; the others send none.
                self.generation = joined.generation_id
                synced = await self._sync(await self._assigned(joined))
                if not self._is_refused(synced.error_code, "join"):
                    return self._parsed(bytes(synced.assignment))
            await self._clock.sleep_ms(REJOIN_MS)

    async def beat(self) -> bool:
        """Send a heartbeat. False if this member must join again."""

        async def work(client: KafkaClient, coordinator: str) -> int:
            request = heartbeat.HeartbeatRequest(
                group_id=self.group.group_id, generation_id=self.generation, member_id=self._member_id
            )
            return self._passed((await client.call(request, heartbeat.HeartbeatResponse)).error_code, "heartbeat in")

        return not self._is_refused(await self.group.run(work), "heartbeat in")

    async def partitions_changed(self) -> bool:
        """Whether a topic was created, deleted or grown since this member assigned partitions; then it must join again.

        Only the leader checks this.
        """
        if self._assigned_counts is None:
            return False
        counts = await self._counts(self._assigned_counts)
        return any(counts.get(topic, 0) != count for topic, count in self._assigned_counts.items())

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> bool:
        """Commit. False if nothing was committed because this client is not a member of the generation any more."""
        try:
            await self.group.commit(offsets, member_id=self._member_id, generation=self.generation)
        except KafkaError as error:
            if error.code not in _JOIN_AGAIN:
                raise
            return False
        return True

    async def leave(self) -> None:
        """Leave the group, so that the other members need not wait until this member's session ends."""
        if not self._member_id:
            return

        async def work(client: KafkaClient, coordinator: str) -> None:
            request = leave_group.LeaveGroupRequest(
                group_id=self.group.group_id,
                members=[leave_group.MemberIdentity(member_id=self._member_id, reason="siltstone consume ends")],
            )
            self._passed((await client.call(request, leave_group.LeaveGroupResponse)).error_code, "leave")

        await self.group.run(work)

    async def _join(self, client: KafkaClient, coordinator: str) -> join_group.JoinGroupResponse:
        request = join_group.JoinGroupRequest(
            group_id=self.group.group_id,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            member_id=self._member_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=[
                join_group.JoinGroupRequestProtocol(name=range_assignor.PROTOCOL, metadata=subscription(self._topics))
            ],
        )
        answer = await client.call(request, join_group.JoinGroupResponse, timeout_ms=JOIN_PATIENCE_MS)
        self._passed(answer.error_code, "join")
        return answer

    async def _assigned(self, joined: join_group.JoinGroupResponse) -> Mapping[str, Mapping[str, Sequence[int]]]:
        """The assignment of all members, if this member leads; empty if another member leads."""
        # Cleared first: if another member leads now, this one must not look for new partitions any more.
        self._assigned_counts = None
        if joined.leader != self._member_id:
            return {}
        # A member whose subscription cannot be read gets no partitions; the others are not held up by it.
        wanted = {each.member_id: parse_subscription(bytes(each.metadata)) or () for each in joined.members}
        topics = {topic for each in wanted.values() for topic in each}
        counts = await self._counts(topics)
        self._assigned_counts = {topic: counts.get(topic, 0) for topic in topics}
        return range_assignor.assign(wanted, counts)

    async def _sync(self, given: Mapping[str, Mapping[str, Sequence[int]]]) -> sync_group.SyncGroupResponse:
        async def work(client: KafkaClient, coordinator: str) -> sync_group.SyncGroupResponse:
            request = sync_group.SyncGroupRequest(
                group_id=self.group.group_id,
                generation_id=self.generation,
                member_id=self._member_id,
                protocol_type=PROTOCOL_TYPE,
                protocol_name=range_assignor.PROTOCOL,
                assignments=[
                    sync_group.SyncGroupRequestAssignment(member_id=member, assignment=assignment(partitions))
                    for member, partitions in given.items()
                ],
            )
            answer = await client.call(request, sync_group.SyncGroupResponse, timeout_ms=JOIN_PATIENCE_MS)
            self._passed(answer.error_code, "join")
            return answer

        return await self.group.run(work)

    def _parsed(self, data: bytes) -> Sequence[TopicPartition]:
        found = parse_assignment(data)
        if found is None:
            raise ForeignAssignmentError(
                f"the leader of group {self.group.group_id!r} did not send an assignment of partitions",
                remedy="use another group with --group",
            )
        return sorted((topic, number) for topic, numbers in found.items() for number in numbers)

    def _is_refused(self, code: int, what: str) -> bool:
        """Whether this member must join again. Raises KafkaError for an error that joining again does not solve."""
        if code not in _JOIN_AGAIN:
            check(code, self.group.named(what))
            return False
        if code == _UNKNOWN_MEMBER:
            self._member_id = ""  # the coordinator has removed this member: join as a new one
        return True

    def _passed(self, code: int, what: str) -> int:
        """Return a code that the caller handles. Raises KafkaError for others; the client repeats temporary ones."""
        if code not in _JOIN_AGAIN and code != _MEMBER_ID_REQUIRED:
            check(code, self.group.named(what))
        return code


def as_text(partitions: Sequence[TopicPartition]) -> str:
    """For example `orders 0,1; users 3`, or `nothing`."""
    by_topic: dict[str, list[str]] = defaultdict(list)
    for topic, partition in partitions:
        by_topic[topic].append(str(partition))
    return "; ".join(f"{topic} {','.join(numbers)}" for topic, numbers in by_topic.items()) or "nothing"
