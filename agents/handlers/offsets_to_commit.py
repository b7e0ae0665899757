"""Partitions of a request that commits offsets, on their way to their answers: what OffsetCommit and TxnOffsetCommit
have in common.

A partition that does not exist is answered UNKNOWN_TOPIC_OR_PARTITION, a text that is too long
OFFSET_METADATA_TOO_LARGE, each alone. The outcome of the commit is the answer for all others.

This agent may not know a partition because its topic cache lags. It then looks for the topic in the store, once; if
that fails, the answer is COORDINATOR_NOT_AVAILABLE.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from typing import Protocol, TypeAlias, TypeVar

from agents.broker import Broker
from agents.groups.checks import Present, place_of
from agents.groups.offset_commits import Outcome
from agents.security.rights import Rights, allowed_in_turns
from agents.yielding import chunks_with_yields
from metadata.groups.contract import OffsetPlace, OffsetToCommit
from security.acls.values import Operation, ResourceType
from wire.error_codes import ErrorCode

OFFSET_METADATA_MAX_BYTES = 4_096
"""The longest text beside a committed offset: the default of Kafka's `offset.metadata.max.bytes`."""

P = TypeVar("P")
T = TypeVar("T")


class AskedPartition(Protocol):
    partition_index: int
    committed_offset: int
    committed_leader_epoch: int
    committed_metadata: str | None


class AskedTopic(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def partitions(self) -> Sequence[AskedPartition]: ...


class Part:
    """One partition of a request."""

    __slots__ = ("asked", "error", "place", "topic_name")

    def __init__(self, topic_name: str, asked: AskedPartition, place: OffsetPlace | None) -> None:
        self.topic_name = topic_name
        self.asked = asked
        self.place = place
        self.error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


Commit: TypeAlias = Callable[[Sequence[OffsetToCommit]], Awaitable[Outcome]]
"""Commits offsets of one request, perhaps none. Called again for topics that turned out to be elsewhere: the group
judges again, because its generation may have moved on meanwhile."""


async def parts_of(broker: Broker, topics: Sequence[AskedTopic]) -> list[Part]:
    parts: list[Part] = []
    async for some in chunks_with_yields([(topic.name, each) for topic in topics for each in topic.partitions]):
        parts += [Part(name, each, place_of(broker.topic_cache, name, each.partition_index)) for name, each in some]
    return parts


async def readable(rights: Rights, parts: Sequence[Part]) -> Sequence[Part]:
    """Those whose topics the client may read; the others get their errors."""
    if rights.is_unlimited:
        return parts
    names = await allowed_in_turns(rights, Operation.READ, ResourceType.TOPIC, {part.topic_name for part in parts})
    for part in parts:
        if part.topic_name not in names:
            part.error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return [part for part in parts if part.topic_name in names]


async def commit_parts(broker: Broker, parts: Sequence[Part], commit: Commit) -> None:
    """Commit at the places of these parts, and note in each what came of it."""
    present = Present(broker.present_topics)
    await _find_again(broker, present, [part for part in parts if part.place is None])
    await _commit([part for part in parts if part.place is not None], commit)
    # A topic may have been re-created.
    gone = [part for part in parts if part.place is not None and part.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    moved = await _find_again(broker, present, gone)
    if moved:
        await _commit(moved, commit)


async def answered(
    topics: Sequence[AskedTopic],
    parts: Sequence[Part],
    partition_of: Callable[[int, ErrorCode], P],
    topic_of: Callable[[str, list[P]], T],
) -> list[T]:
    """The answers, topic by topic as they were asked for."""
    answers: list[P] = []
    async for some in chunks_with_yields(parts):
        answers += [partition_of(part.asked.partition_index, part.error) for part in some]
    in_order, found = iter(answers), list[T]()
    async for some in chunks_with_yields(topics):
        found += [topic_of(topic.name, list(islice(in_order, len(topic.partitions)))) for topic in some]
    return found


async def _find_again(broker: Broker, present: Present, unknown: Sequence[Part]) -> Sequence[Part]:
    """The unknown partitions that turned out to be elsewhere."""
    if not unknown:
        return []
    if not await present.see():
        for part in unknown:
            part.error = ErrorCode.COORDINATOR_NOT_AVAILABLE
        return []
    moved: list[Part] = []
    async for some in chunks_with_yields(unknown):
        for part in some:
            place = place_of(broker.topic_cache, part.topic_name, part.asked.partition_index)
            # If the place is still the same, the partition is gone: the store has just called it unknown.
            if place is not None and place != part.place:
                part.place = place
                moved.append(part)
    return moved


async def _commit(parts: Sequence[Part], commit: Commit) -> None:
    offsets: list[OffsetToCommit] = []
    written: list[tuple[Part, OffsetPlace]] = []
    async for some in chunks_with_yields(parts):
        for part in some:
            place = part.place
            if len(part.asked.committed_metadata or "") > OFFSET_METADATA_MAX_BYTES:
                part.error = ErrorCode.OFFSET_METADATA_TOO_LARGE
            elif place is not None:
                written.append((part, place))
                offsets.append(_to_commit(part.asked, place))
    # Even with nothing to write: a commit is a sign of life of its member.
    outcome = await commit(offsets)
    async for some in chunks_with_yields(written):
        for part, place in some:
            part.error = _error_at(place, outcome)


def _to_commit(asked: AskedPartition, place: OffsetPlace) -> OffsetToCommit:
    return OffsetToCommit(
        place=place,
        offset=asked.committed_offset,
        leader_epoch=asked.committed_leader_epoch,
        metadata=asked.committed_metadata or "",
    )


def _error_at(place: OffsetPlace, outcome: Outcome) -> ErrorCode:
    if isinstance(outcome, ErrorCode):
        return outcome
    if outcome.fenced:
        return ErrorCode.NOT_COORDINATOR
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if place in outcome.unknown else ErrorCode.NONE
