"""A client of a fetch session knows the same as from full fetches, after every step of a random history.

The client behaves as Java's `FetchSessionHandler`. It names the changed partitions, begins again when it is refused or
an answer was lost, and takes a partition that an answer leaves out for unchanged.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.read.sessions import EVICT_MS, FetchContext, FetchSessions, TopicKey
from wire.error_codes import ErrorCode
from wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)

Key: TypeAlias = tuple[TopicKey, int]
TOPICS = 2
PARTITIONS = 2


@dataclass
class Log:
    start: int = 0
    stable: int = 0
    end: int = 0
    error: ErrorCode = ErrorCode.NONE

    def read(self, partition: int, offset: int) -> PartitionData:
        """The answer of a full fetch."""
        if not self.start <= offset <= self.end:
            return PartitionData(
                partition_index=partition, error_code=ErrorCode.OFFSET_OUT_OF_RANGE, high_watermark=-1, records=b""
            )
        return PartitionData(
            partition_index=partition,
            error_code=self.error,  # records that cannot be read leave the watermarks as they are
            high_watermark=self.end,
            last_stable_offset=self.stable,
            log_start_offset=self.start,
            records=b"" if self.error else b"r" * (self.end - offset),
        )


@dataclass
class Agent:
    slots_max: int
    partitions_max: int
    seed: int
    logs: dict[Key, Log] = field(default_factory=dict[Key, Log])
    now_ms: float = 0.0

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self.seed += 1
        draw = random.Random(self.seed).random
        self.sessions = FetchSessions(slots_max=self.slots_max, draw=draw, partitions_max=self.partitions_max)

    def begin(self, request: FetchRequest, *, by_id: bool) -> FetchContext:
        return self.sessions.begin(request, by_id=by_id, now_ms=self.now_ms)

    def end(self, context: FetchContext) -> FetchResponse:
        if context.error:
            return FetchResponse(error_code=context.error)
        for part in context.parts:
            answer = self.logs[part.topic, part.asked.partition].read(part.asked.partition, part.asked.fetch_offset)
            nothing_to_say = not answer.error_code and not answer.records
            told = part.is_told(answer.high_watermark, answer.log_start_offset, answer.last_stable_offset)
            part.answer = None if nothing_to_say and told else answer  # as the handler does
        return self.sessions.answer(context, now_ms=self.now_ms)


class Client:
    def __init__(self, *, by_id: bool) -> None:
        self.by_id = by_id
        self.wanted: dict[Key, int] = {}
        """The offset to read from, by partition."""
        self.known: dict[Key, PartitionData] = {}
        """The last answer for each partition, without the records."""
        self.session_id = self.epoch = 0
        self._sent: dict[Key, int] = {}
        """The session's contents as far as the client knows."""

    def request(self) -> FetchRequest:
        full = self.epoch == 0
        changed = {key: at for key, at in self.wanted.items() if full or self._sent.get(key) != at}
        forgotten = [] if full else [key for key in self._sent if key not in self.wanted]
        self.known = {} if full else {key: told for key, told in self.known.items() if key not in forgotten}
        self._sent = dict(self.wanted)
        return FetchRequest(
            session_id=self.session_id,
            session_epoch=self.epoch,
            topics=[
                FetchTopic(**self._named(topic), partitions=[FetchPartition(partition=partition, fetch_offset=at)])
                for (topic, partition), at in changed.items()
            ],
            forgotten_topics_data=[
                ForgottenTopic(**self._named(topic), partitions=[partition]) for topic, partition in forgotten
            ],
        )

    def _named(self, topic: TopicKey) -> Any:
        return {"topic_id": topic} if self.by_id else {"topic": topic}

    def lose(self) -> None:
        """The answer is lost, or reports an error of the session."""
        self.epoch = 0

    def take(self, answer: FetchResponse) -> dict[Key, PartitionData] | None:
        """All partitions as the client sees them now; None when the request was refused."""
        if answer.error_code:
            if answer.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
                self.session_id = 0
            self.lose()
            return None
        told = {
            (topic.topic_id if self.by_id else topic.topic, part.partition_index): part
            for topic in answer.responses
            for part in topic.partitions
        }
        was_full = self.epoch == 0
        assert told.keys() <= self._sent.keys() and (not was_full or told.keys() == self._sent.keys())
        seen: dict[Key, PartitionData] = {}
        for key in self._sent:
            part = told.get(key)
            if part is None:
                before = self.known[key]
                assert not before.error_code, "an error that is over is told"
                part = before
            seen[key] = part
            self.known[key] = PartitionData(
                partition_index=part.partition_index,
                error_code=part.error_code,
                high_watermark=part.high_watermark,
                last_stable_offset=part.last_stable_offset,
                log_start_offset=part.log_start_offset,
                records=b"",
            )
        if answer.session_id:
            assert was_full or answer.session_id == self.session_id
            self.session_id, self.epoch = answer.session_id, self.epoch + 1
        else:
            self.session_id = self.epoch = 0
        return seen


places = st.tuples(st.integers(0, TOPICS - 1), st.integers(0, PARTITIONS - 1))
steps = st.one_of(
    st.tuples(st.just("fetch"), st.sampled_from(["", "lost", "parked"])),
    st.tuples(st.just("grow"), places, st.integers(1, 3)),
    st.tuples(st.just("transactions end"), places, st.integers(1, 3)),
    st.tuples(st.just("delete records"), places, st.integers(1, 3)),
    st.tuples(st.just("trouble comes or goes"), places),
    st.tuples(st.just("read on"), places),
    st.tuples(st.just("want"), places),
    st.tuples(st.just("forget"), places),
    st.tuples(st.just("others come"), st.integers(1, 3), st.integers(1, 5)),
    st.tuples(st.just("time passes"), st.sampled_from([EVICT_MS // 2, EVICT_MS + 1])),
    st.tuples(st.just("a late answer")),
    st.tuples(st.just("the other kind of version")),
    st.tuples(st.just("a stranger's epoch"), st.integers(0, 2)),
    st.tuples(st.just("restart")),
)


def check_counts(agent: Agent) -> None:
    sessions = agent.sessions._sessions
    assert len(sessions) <= agent.slots_max
    assert agent.sessions.partitions == sum(len(each.parts) for each in sessions.values()) <= agent.partitions_max
    assert (
        sorted((each.size, each.session_id) for each in sessions.values() if each.is_replaceable)
        == agent.sessions._replaceable
    )


def meddle(agent: Agent, client: Client, ahead: int | None) -> None:
    """Use the client's session with the other kind of version, or in a future epoch. The agent refuses, and nothing
    changes."""
    if client.epoch:
        request = FetchRequest(session_id=client.session_id, session_epoch=client.epoch + (ahead or 0))
        assert agent.begin(request, by_id=client.by_id if ahead else not client.by_id).error


def live_through(
    by_id: bool, slots_max: int, partitions_max: int, first: list[tuple[int, int]], history: list[tuple[Any, ...]]
) -> None:
    """Fetch before and after each step, and compare with full fetches."""
    names: list[TopicKey] = [UUID(int=9 + each) if by_id else f"t{each}" for each in range(TOPICS)]
    agent = Agent(slots_max, partitions_max, seed=3)
    agent.logs = {(name, at): Log() for name in names for at in range(PARTITIONS)}
    client = Client(by_id=by_id)
    for topic, at in first:
        client.wanted[names[topic], at] = 0

    parked: list[FetchContext] = []
    """Fetches that were not answered when the client gave up."""

    def fetch(how: str = "") -> None:
        request = client.request()
        context = agent.begin(request, by_id=by_id)
        if how == "lost":
            agent.end(context)
        if how == "parked":
            parked.append(context)
        if how:
            client.lose()
            return
        seen = client.take(agent.end(context))
        if seen is not None:
            assert seen == {key: agent.logs[key].read(key[1], at) for key, at in client.wanted.items()}

    for step in history:
        fetch()
        match step:
            case ("fetch", how):
                fetch(how)
            case ("grow", (topic, at), count):
                agent.logs[names[topic], at].end += count
            case ("transactions end", (topic, at), count):
                log = agent.logs[names[topic], at]
                log.stable = min(log.stable + count, log.end)
            case ("delete records", (topic, at), count):
                log = agent.logs[names[topic], at]
                log.start = min(log.start + count, log.end)
            case ("trouble comes or goes", (topic, at)):
                log = agent.logs[names[topic], at]
                log.error = ErrorCode.NONE if log.error else ErrorCode.KAFKA_STORAGE_ERROR
            case ("read on", (topic, at)):
                key = names[topic], at
                if key in client.known and key in client.wanted and not client.known[key].error_code:
                    client.wanted[key] = client.known[key].high_watermark
            case ("want", (topic, at)):
                client.wanted.setdefault((names[topic], at), 0)
            case ("forget", (topic, at)):
                client.wanted.pop((names[topic], at), None)
            case ("others come", sessions, size):
                for _ in range(sessions):
                    other = Client(by_id=by_id)
                    other.wanted = dict.fromkeys(list(agent.logs)[:size], 0)
                    agent.end(agent.begin(other.request(), by_id=by_id))
            case ("time passes", ms):
                agent.now_ms += ms
            case ("a late answer",):
                if parked:
                    agent.end(parked.pop(0))
            case ("the other kind of version",):
                meddle(agent, client, None)
            case ("a stranger's epoch", ahead):
                meddle(agent, client, 1 + ahead)
            case _:
                agent.restart()
        fetch()
        check_counts(agent)


@given(
    by_id=st.booleans(),
    slots_max=st.sampled_from([0, 1, 2, 3]),
    partitions_max=st.sampled_from([3, 6, 1_000]),
    first=st.lists(places, min_size=1, max_size=4, unique=True),
    history=st.lists(steps, max_size=60),
)
def test_a_session_tells_what_full_fetches_tell(
    by_id: bool, slots_max: int, partitions_max: int, first: list[tuple[int, int]], history: list[tuple[Any, ...]]
) -> None:
    live_through(by_id, slots_max, partitions_max, first, history)


@pytest.mark.parametrize("seed", range(6))
def test_a_session_tells_what_full_fetches_tell_in_long_histories(seed: int) -> None:
    chance = random.Random(seed)

    def place() -> tuple[int, int]:
        return chance.randrange(TOPICS), chance.randrange(PARTITIONS)

    kinds: list[Callable[[], tuple[Any, ...]]] = [
        lambda: ("fetch", chance.choice(["lost", "parked"])),
        lambda: ("grow", place(), chance.randint(1, 3)),
        lambda: ("delete records", place(), chance.randint(1, 3)),
        lambda: ("trouble comes or goes", place()),
        lambda: ("trouble comes or goes", place()),
        lambda: ("read on", place()),
        lambda: ("want", place()),
        lambda: ("forget", place()),
        lambda: ("others come", chance.randint(1, 3), chance.randint(1, 4)),
        lambda: ("time passes", chance.choice([EVICT_MS // 2, EVICT_MS + 1])),
        lambda: ("a late answer",),
    ]
    for _ in range(40):
        history = [chance.choice(kinds)() for _ in range(40)]
        live_through(chance.random() < 0.5, 3, chance.choice([6, 1_000]), [place(), place()], history)
