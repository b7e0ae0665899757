"""Consumer groups over the Kafka protocol: list, describe, read committed offsets, commit for a group, delete.

One agent, the coordinator, handles a group. Any agent can name the coordinator, but each agent lists only its own
groups. The coordinator changes when agents come and go; for some seconds a request that reached the wrong agent is
repeated at the new coordinator. All requests here are safe to repeat.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

from runtime.clock import Clock
from runtime.errors import BadInputError, UnavailableError
from siltstone.kafka.client import ConnectionLostError, HungAgentError, KafkaClient, KafkaError, connected
from siltstone.kafka.groups.consumer_protocol import PROTOCOL_TYPE, parse_assignment
from siltstone.kafka.records import TopicPartition
from siltstone.kafka.retrying import RetryNotice, address_of, is_passing
from wire.error_codes import ErrorCode
from wire.errors import MalformedMessageError
from wire.messages import (
    delete_groups,
    describe_groups,
    find_coordinator,
    list_groups,
    offset_commit,
    offset_delete,
    offset_fetch,
)

T = TypeVar("T")

PATIENCE_MS = 15_000
"""A request is repeated for this long after its first temporary error."""
NAME_BYTES_MAX = 32_767
"""The longest string of the protocol."""
BACKOFF_MS = 100
_REMEDIES: Mapping[str, str] = MappingProxyType(
    {
        "GROUP_ID_NOT_FOUND": "`siltstone groups list` shows the groups",
        "NON_EMPTY_GROUP": "stop the members of the group first; `siltstone groups describe` shows them",
        "UNKNOWN_MEMBER_ID": "the group has members: stop them first; `siltstone groups describe` shows them",
        "GROUP_SUBSCRIBED_TO_TOPIC": "first stop the members that read the topic",
        "INVALID_GROUP_ID": "give a group name that is neither empty nor very long",
        "INCONSISTENT_GROUP_PROTOCOL": "the members use other assignors: add `range` to theirs"
        " (partition.assignment.strategy), or use another group",
    }
)
_NOT_FOUND = int(ErrorCode.GROUP_ID_NOT_FOUND)
_UNSTABLE = int(ErrorCode.UNSTABLE_OFFSET_COMMIT)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedGroup:
    group_id: str
    state: str
    protocol_type: str
    coordinator: str
    """HOST:PORT"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    member_id: str
    instance_id: str | None
    """The group.instance.id of a static member."""
    client_id: str
    host: str
    assignment: Mapping[str, tuple[int, ...]] | None
    """Partitions by topic; None if the group does not use the protocol of consumers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    group_id: str
    state: str
    """Kafka's name of the state; "Dead" if the group does not exist."""
    protocol_type: str
    protocol: str
    coordinator: str
    members: Sequence[Member]

    @property
    def exists(self) -> bool:
        return self.state != "Dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    offset: int
    metadata: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StableOffsets:
    """Committed offsets, as a member asks for them that is about to read from there."""

    committed: Mapping[TopicPartition, Committed]
    pending: Collection[TopicPartition]
    """Partitions whose offset an open transaction holds: nobody knows yet where to go on."""


async def all_groups(
    bootstrap: str, *, states: Sequence[str] = (), told: Callable[[str], None] = lambda _: None
) -> Sequence[ListedGroup]:
    """The groups of all agents, sorted by name. `told` gets a line if an agent does not answer: its groups are missing.

    Raises the errors of connecting to the bootstrap.
    """
    async with connected(bootstrap) as client:
        addresses = [address_of(each.host, each.port) for each in (await client.metadata([])).brokers]
    found: dict[str, ListedGroup] = {}
    answers = await asyncio.gather(*(_listed(each, states) for each in addresses), return_exceptions=True)
    for address, answer in zip(addresses, answers, strict=True):
        if isinstance(answer, (UnavailableError, KafkaError)):
            told(f"the groups of {address} are missing: {answer.message}")
        elif isinstance(answer, BaseException):
            raise answer
        else:
            found |= {each.group_id: each for each in answer}
    return sorted(found.values(), key=lambda each: each.group_id)


async def _listed(address: str, states: Sequence[str]) -> Sequence[ListedGroup]:
    async with connected(address) as client:
        answer = await client.call(
            list_groups.ListGroupsRequest(states_filter=list(states)), list_groups.ListGroupsResponse
        )
    check(answer.error_code, "list groups")
    return [
        ListedGroup(
            group_id=each.group_id, state=each.group_state, protocol_type=each.protocol_type, coordinator=address
        )
        for each in answer.groups
    ]


class GroupClient:
    """One group, at its present coordinator. Every call may raise KafkaError and UnavailableError."""

    def __init__(
        self,
        bootstrap: str,
        group_id: str,
        clock: Clock,
        *,
        patience_ms: float = PATIENCE_MS,
        told: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`told` gets a line when the coordinator is lost or answers with temporary errors for over a second, and
        another line when that is over. If no agent answers the very first request, the call raises at once, because the
        address may be wrong.

        Raises BadInputError for a name that no request can carry.
        """
        try:
            if len(group_id.encode()) > NAME_BYTES_MAX:
                raise BadInputError("the name of the group is too long", remedy=f"give at most {NAME_BYTES_MAX} bytes")
        except UnicodeEncodeError as error:
            raise BadInputError(
                f"the name of the group, {group_id!r}, is not UTF-8", remedy="give another name"
            ) from error
        self.group_id = group_id
        self._bootstrap = bootstrap
        self._clock = clock
        self._patience_ms = patience_ms
        self._told = told
        self._known: list[str] = []
        """Addresses of coordinators that were found, the latest last."""

    async def describe(self) -> GroupDescription:
        async def work(client: KafkaClient, coordinator: str) -> GroupDescription:
            answer = await client.call(
                describe_groups.DescribeGroupsRequest(groups=[self.group_id]), describe_groups.DescribeGroupsResponse
            )
            for group in answer.groups:
                if group.error_code != _NOT_FOUND:
                    check(group.error_code, self.named("describe"), group.error_message)
                return _group(group, coordinator)
            raise MalformedMessageError(f"{coordinator} answered DescribeGroups with no group")

        return await self.run(work)

    async def committed(self) -> Mapping[TopicPartition, Committed]:
        """Every offset that the group has committed, whatever an open transaction is about to change."""
        asked = offset_fetch.OffsetFetchRequestGroup(group_id=self.group_id, topics=None)
        return (await self._offsets(asked)).committed

    async def stable_offsets(self, partitions: Collection[TopicPartition]) -> StableOffsets:
        topics: dict[str, list[int]] = defaultdict(list)
        for topic, partition in sorted(partitions):
            topics[topic].append(partition)
        named = [offset_fetch.OffsetFetchRequestTopics(name=name, partition_indexes=p) for name, p in topics.items()]
        asked = offset_fetch.OffsetFetchRequestGroup(group_id=self.group_id, topics=named)
        return await self._offsets(asked, require_stable=True)

    async def _offsets(
        self, asked: offset_fetch.OffsetFetchRequestGroup, *, require_stable: bool = False
    ) -> StableOffsets:
        async def work(client: KafkaClient, coordinator: str) -> StableOffsets:
            request = offset_fetch.OffsetFetchRequest(groups=[asked], require_stable=require_stable)
            answer = await client.call(request, offset_fetch.OffsetFetchResponse)
            found: dict[TopicPartition, Committed] = {}
            pending: list[TopicPartition] = []
            for group in answer.groups:
                if group.error_code != _NOT_FOUND:
                    check(group.error_code, self.named("committed offsets of"))
                for topic in group.topics:
                    for each in topic.partitions:
                        if each.error_code == _UNSTABLE:
                            pending.append((topic.name, each.partition_index))
                            continue
                        check(each.error_code, self.named("committed offsets of"))
                        # -1 means that this partition has no committed offset.
                        if each.committed_offset >= 0:
                            found[topic.name, each.partition_index] = Committed(
                                offset=each.committed_offset, metadata=each.metadata or ""
                            )
            return StableOffsets(committed=found, pending=pending)

        return await self.run(work)

    async def commit(self, offsets: Mapping[TopicPartition, int], *, member_id: str = "", generation: int = -1) -> None:
        """Commit as this member, or as a client without a member id; the coordinator accepts that while the group has
        no members.

        If the agent refuses some of the offsets, the others may be stored.
        """

        async def work(client: KafkaClient, coordinator: str) -> None:
            topics: dict[str, list[offset_commit.OffsetCommitRequestPartition]] = defaultdict(list)
            for (topic, partition), offset in offsets.items():
                topics[topic].append(
                    offset_commit.OffsetCommitRequestPartition(
                        partition_index=partition, committed_offset=offset, committed_metadata=""
                    )
                )
            request = offset_commit.OffsetCommitRequest(
                group_id=self.group_id,
                generation_id_or_member_epoch=generation,
                member_id=member_id,
                topics=[offset_commit.OffsetCommitRequestTopic(name=name, partitions=p) for name, p in topics.items()],
            )
            answer = await client.call(request, offset_commit.OffsetCommitResponse)
            for topic in answer.topics:
                for each in topic.partitions:
                    check(each.error_code, f"commit {topic.name}-{each.partition_index} for {self.group_id!r}")

        await self.run(work)

    async def delete(self) -> None:
        async def work(client: KafkaClient, coordinator: str) -> None:
            answer = await client.call(
                delete_groups.DeleteGroupsRequest(groups_names=[self.group_id]), delete_groups.DeleteGroupsResponse
            )
            for each in answer.results:
                check(each.error_code, self.named("delete"))

        await self.run(work)

    async def delete_offsets(self, partitions: Collection[TopicPartition]) -> None:
        async def work(client: KafkaClient, coordinator: str) -> None:
            topics: dict[str, list[offset_delete.OffsetDeleteRequestPartition]] = defaultdict(list)
            for topic, partition in sorted(partitions):
                topics[topic].append(offset_delete.OffsetDeleteRequestPartition(partition_index=partition))
            request = offset_delete.OffsetDeleteRequest(
                group_id=self.group_id,
                topics=[offset_delete.OffsetDeleteRequestTopic(name=name, partitions=p) for name, p in topics.items()],
            )
            answer = await client.call(request, offset_delete.OffsetDeleteResponse)
            check(answer.error_code, self.named("delete offsets of"))
            for topic in answer.topics:
                for each in topic.partitions:
                    check(each.error_code, f"delete the offset of {topic.name}-{each.partition_index}")

        await self.run(work)

    def named(self, what: str) -> str:
        return f"{what} group {self.group_id!r}"

    async def run(self, work: Callable[[KafkaClient, str], Awaitable[T]]) -> T:
        """Do `work` at the coordinator. After a temporary error repeat it, at the coordinator of that moment, until
        `patience_ms` after the first error."""
        notice = RetryNotice(self._told, self._clock, self._patience_ms)
        while True:
            try:
                async with self._coordinator() as (client, address):
                    result = await work(client, address)
            except (KafkaError, UnavailableError) as error:
                if isinstance(error, KafkaError) and not is_passing(error.code):
                    raise
                # No agent answered and none ever did: the bootstrap address is probably wrong, so do not wait.
                answered = isinstance(error, (KafkaError, ConnectionLostError)) and not isinstance(
                    error, HungAgentError
                )
                if not (self._known or answered):
                    raise
                if not notice.failed(error, is_lost=isinstance(error, UnavailableError), wait_ms=BACKOFF_MS):
                    raise
            else:
                notice.answered("the coordinator")
                return result
            await self._clock.sleep_ms(BACKOFF_MS)

    @asynccontextmanager
    async def _coordinator(self) -> AsyncGenerator[tuple[KafkaClient, str]]:
        # Former coordinators are agents too: they help when the bootstrap address does not answer any more.
        addresses = dict.fromkeys([*self._bootstrap.split(","), *self._known])
        async with connected(",".join(addresses)) as client:
            answer = await client.call(
                find_coordinator.FindCoordinatorRequest(coordinator_keys=[self.group_id]),
                find_coordinator.FindCoordinatorResponse,
            )
        for each in answer.coordinators:
            check(each.error_code, f"find the coordinator of {self.group_id!r}", each.error_message)
            address = address_of(each.host, each.port)
            self._known = [*(known for known in self._known if known != address), address]
            async with connected(address) as client:
                yield client, address
            return
        raise MalformedMessageError("FindCoordinator was answered with no coordinator")


def _group(group: describe_groups.DescribedGroup, coordinator: str) -> GroupDescription:
    is_consumers = group.protocol_type == PROTOCOL_TYPE
    return GroupDescription(
        group_id=group.group_id,
        state="Dead" if group.error_code == _NOT_FOUND else group.group_state,
        protocol_type=group.protocol_type,
        protocol=group.protocol_data,
        coordinator=coordinator,
        members=[
            Member(
                member_id=each.member_id,
                instance_id=each.group_instance_id,
                client_id=each.client_id,
                host=each.client_host,
                assignment=parse_assignment(bytes(each.member_assignment)) if is_consumers else None,
            )
            for each in group.members
        ],
    )


def check(code: int, what: str, detail: str | None = None) -> None:
    """Raises KafkaError for any code but 0, with the remedy for groups."""
    if code:
        raise KafkaError(code, what, detail, remedies=_REMEDIES)
