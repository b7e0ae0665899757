"""Fetch sessions (KIP-227): what a client asked for and was told, so that neither side repeats it. Pure.

A full fetch that wants a session (epoch 0) gets one if there is room. The requests that follow name the session, its
next epoch and only the changes: partitions to add or to read from elsewhere, partitions to forget. The answers name
only partitions with records, an error, or a high watermark, last stable offset or log start other than the client was
told last. Partitions that gave records go to the end of the line, so that others come first if the limit of an answer
is short.

Rules of Kafka's `FetchManager`, `FetchSession` and `FetchSessionCacheShard`:

- A full fetch closes the session that it names; epoch -1 opens none after it.
- An unknown id is FETCH_SESSION_ID_NOT_FOUND. Another epoch than the next is INVALID_FETCH_SESSION_EPOCH. Topics by id
  if the session began by name (or the other way) are FETCH_SESSION_TOPIC_ID_ERROR. The client then begins again.
- A session in which nothing is left to ask for ends, and that request is answered as a full one.
- If the session has moved on before an answer is ready (the client sent the next request before it had this answer),
  the answer is INVALID_FETCH_SESSION_EPOCH.
- If all slots are taken, a new session replaces the least recently used one, if that was idle for more than EVICT_MS;
  otherwise the one with the fewest partitions among those older than EVICT_MS, if it has fewer than the new one.

Not in Kafka: the partitions of all sessions are bounded too. A request for which there is no room is answered without a
session, which is always legal; a session that would outgrow the bound is closed. To bound the size of a partition as
well, names that no topic can have are answered (there is no such topic, nor will there be) and not kept.

Sessions live in this process alone. Any connection may continue one; after a restart, or at another agent, its id is
unknown and the client sends a full fetch. Ids are drawn at random, so that an id of another agent is not taken for
ours.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias
from uuid import UUID

from agents.tail.log_index import PartitionLog
from agents.topics.rules import NAME_CHARACTERS_MAX
from wire.error_codes import ErrorCode
from wire.messages.fetch import FetchableTopicResponse, FetchPartition, FetchRequest, FetchResponse, PartitionData

TopicKey: TypeAlias = str | UUID
"""A topic as the request names it: by name, or from Fetch 13 by id."""
Key: TypeAlias = tuple[TopicKey, int]

NO_SESSION = 0
FULL_WITH_SESSION, FULL_WITHOUT = 0, -1
"""Epochs that ask for everything; every other one is an incremental fetch."""
FIRST_EPOCH, LAST_EPOCH = 1, 0x7FFFFFFF
EVICT_MS = 120_000
"""Kafka's MIN_INCREMENTAL_FETCH_SESSION_EVICTION_MS."""
SESSIONS_MAX = 1_000
"""Sessions of one agent: the default of Kafka's `max.incremental.fetch.session.cache.slots`."""
PARTITIONS_MAX = 100_000
"""Bound over all sessions together. One partition takes 450 bytes, measured: 45 MB at the bound; 30 MB more if each is
of a topic of its own with the longest name."""


class FetchPart:
    """One partition of a request on its way to an answer, and of a session from one request to the next."""

    __slots__ = (
        "allowed_by",
        "answer",
        "asked",
        "log",
        "partition_id",
        "told_high_watermark",
        "told_last_stable",
        "told_log_start",
        "topic",
        "topics_version",
    )

    def __init__(self, topic: TopicKey, asked: FetchPartition) -> None:
        self.topic = topic
        self.asked = asked
        self.told_high_watermark = self.told_log_start = self.told_last_stable = -1
        """The values that the client knows; -1: it must be told."""
        # Used by the handler during one request. The answer stays None if there is nothing to tell about the partition.
        self.answer: PartitionData | None = None
        self.log: PartitionLog | None = None
        # Used by the handler as long as the topic cache stays at this version.
        self.topics_version = -1
        self.partition_id = -1
        # The rights of the client that may read it. Another connection may go on with the session.
        self.allowed_by: object = None

    def is_told(self, high_watermark: int, log_start: int, last_stable: int) -> bool:
        """The client knows these values: without records and errors there is nothing to tell it."""
        return (
            high_watermark == self.told_high_watermark
            and log_start == self.told_log_start
            and last_stable == self.told_last_stable
        )

    def record_answer(self, answer: PartitionData) -> bool:
        """Record the answer as told to the client. Returns True if it says anything new; after an error everything is
        new."""
        failed = bool(answer.error_code)
        ends = answer.high_watermark, answer.log_start_offset, answer.last_stable_offset
        is_new = failed or bool(answer.records) or not self.is_told(*ends)
        self.told_high_watermark = -1 if failed else answer.high_watermark
        self.told_log_start = answer.log_start_offset
        self.told_last_stable = answer.last_stable_offset
        return is_new

    def again(self) -> FetchPart:
        """The same partition for another request, while this one is still being answered."""
        copy = FetchPart(self.topic, self.asked)
        copy.told_high_watermark, copy.told_log_start = self.told_high_watermark, self.told_log_start
        copy.told_last_stable = self.told_last_stable
        return copy


@dataclass(slots=True)
class Session:
    session_id: int
    by_id: bool
    """Its requests name topics by id: all of them must, or none."""
    parts: dict[Key, FetchPart]
    """In the order in which they are read."""
    created_ms: float
    used_ms: float
    epoch: int = FIRST_EPOCH
    """The epoch of the next request."""
    size: int = 0
    """Number of partitions counted at its last use."""
    is_replaceable: bool = False
    answering: bool = False
    """A request has the parts, or had them when its client went away."""

    def take(self, request: FetchRequest) -> list[FetchPart]:
        """Add, change and forget partitions as the request says. Returns those that cannot be kept."""
        strangers: list[FetchPart] = []
        # A request before this one may still write into its parts: this one gets parts of its own.
        if self.answering:
            self.parts = {key: part.again() for key, part in self.parts.items()}
        for topic in request.topics:
            name: TopicKey = topic.topic_id if self.by_id else topic.topic
            for asked in topic.partitions:
                known = self.parts.get((name, asked.partition))
                if known is None and not _may_exist(name):
                    strangers.append(FetchPart(name, asked))
                elif known is None:
                    self.parts[name, asked.partition] = FetchPart(name, asked)
                else:
                    known.asked = asked
        for forgotten in request.forgotten_topics_data:
            name = forgotten.topic_id if self.by_id else forgotten.topic
            for partition in forgotten.partitions:
                self.parts.pop((name, partition), None)
        return strangers


@dataclass(slots=True)
class FetchContext:
    """One request: the parts to read for it, and the kind of its answer."""

    parts: list[FetchPart] = field(default_factory=list[FetchPart])
    by_id: bool = False
    error: ErrorCode = ErrorCode.NONE
    """An error of the whole request: there is nothing to read."""
    session: Session | None = None
    epoch: int = 0
    """The epoch that the session will have if no other request of it comes meanwhile."""
    opens: dict[Key, FetchPart] | None = None
    """The parts of the session that the client wants."""


class FetchSessions:
    """`draw` gives a number in [0, 1); `on_evicted` is called for every session that is evicted; times are in ms of one
    monotonic clock."""

    def __init__(
        self,
        *,
        slots_max: int,
        draw: Callable[[], float],
        on_evicted: Callable[[], None] = lambda: None,
        partitions_max: int = PARTITIONS_MAX,
    ) -> None:
        self._slots_max = slots_max
        self._partitions_max = partitions_max
        self._draw = draw
        self._on_evicted = on_evicted
        self._sessions: OrderedDict[int, Session] = OrderedDict()
        """The least recently used first."""
        self._replaceable: list[tuple[int, int]] = []
        """(partitions, id) of the sessions that were older than EVICT_MS at their last use, sorted."""
        self.partitions = 0
        """The partitions of all sessions."""

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, request: FetchRequest, *, by_id: bool, now_ms: float) -> FetchContext:
        """The parts to read for this request. A context without an error must go on to `answer`, or be dropped."""
        if request.session_epoch in (FULL_WITH_SESSION, FULL_WITHOUT):
            return self._begin_full(request, by_id)
        session = self._sessions.get(request.session_id)
        if session is None:
            return FetchContext(error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != request.session_epoch:
            return FetchContext(error=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.by_id != by_id:
            return FetchContext(error=ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        strangers = session.take(request)
        if not session.parts:
            self._close(session)
            return FetchContext(list(_parts(request, by_id)), by_id)
        if self.partitions + len(session.parts) - session.size > self._partitions_max:
            # As if it had been evicted: the client begins again, and gets a session if there is room.
            self._close(session)
            self._on_evicted()
            return FetchContext(error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        self._touch(session, now_ms)
        session.epoch = FIRST_EPOCH if session.epoch == LAST_EPOCH else session.epoch + 1
        session.answering = True
        return FetchContext([*session.parts.values(), *strangers], by_id, session=session, epoch=session.epoch)

    def answer(self, context: FetchContext, *, now_ms: float) -> FetchResponse:
        """The answer from the answers of the parts. Only a session may leave out a part that has none."""
        response, answered = self.settle(context, now_ms=now_ms)
        add_by_topic(response.responses, answered)
        return response

    def settle(self, context: FetchContext, *, now_ms: float) -> tuple[FetchResponse, Sequence[Answered]]:
        """The same, but the answers of the parts are still to be added to the response."""
        session = context.session
        if session is None:
            answered = [(part, part.answer) for part in context.parts if part.answer is not None]
            response = FetchResponse()
            if context.opens is not None:
                for part, answer in answered:
                    part.record_answer(answer)
                response.session_id = self._open(context.opens, context.by_id, now_ms)
            return response, answered
        # Another request of the session came meanwhile and has taken over what the client is told.
        if session.epoch != context.epoch:
            return FetchResponse(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH, session_id=session.session_id), ()
        session.answering = False
        news: list[Answered] = []
        for part in context.parts:
            part.log = None
            answer, part.answer = part.answer, None
            if answer is None or not part.record_answer(answer):
                continue
            news.append((part, answer))
            if answer.records:
                key = (part.topic, answer.partition_index)
                session.parts[key] = session.parts.pop(key)
        return FetchResponse(session_id=session.session_id), news

    def answer_nothing(self, context: FetchContext, *, now_ms: float) -> FetchResponse:
        """The answer to a client that is over its quota (KIP-219): it asks the same again. No session is opened, for
        an answer that leaves out partitions is none to a full fetch."""
        context.opens = None
        for part in context.parts:
            part.answer = None
        return self.answer(context, now_ms=now_ms)

    # ---- full fetches

    def _begin_full(self, request: FetchRequest, by_id: bool) -> FetchContext:
        named = self._sessions.get(request.session_id) if request.session_id else None
        if named is not None:
            self._close(named)
        parts = list(_parts(request, by_id))
        if request.session_epoch == FULL_WITHOUT or not self._slots_max:
            return FetchContext(parts, by_id)
        # If a partition is named twice, its first mention gives the place, its last one the values.
        opens: dict[Key, FetchPart] = {}
        for part in parts:
            opens[part.topic, part.asked.partition] = part
        kept = {key: part for key, part in opens.items() if _may_exist(part.topic)}
        # With nothing to keep there is no session to open.
        return FetchContext(list(opens.values()), by_id, opens=None if opens and not kept else kept)

    def _open(self, parts: dict[Key, FetchPart], by_id: bool, now_ms: float) -> int:
        """The new session's id, or NO_SESSION if there is no room."""
        if not self._make_room(len(parts), now_ms):
            return NO_SESSION
        session_id = NO_SESSION
        while session_id == NO_SESSION or session_id in self._sessions:
            # Never 0, which means "no session".
            session_id = 1 + int(self._draw() * (LAST_EPOCH - 1))
        for part in parts.values():
            part.answer = part.log = None
        session = self._sessions[session_id] = Session(session_id, by_id, parts, now_ms, now_ms)
        self._touch(session, now_ms)
        return session_id

    # ---- room

    def _make_room(self, size: int, now_ms: float) -> bool:
        if size > self._partitions_max:
            return False
        while len(self._sessions) >= self._slots_max or self.partitions + size > self._partitions_max:
            session = self._least_wanted(size, now_ms)
            if session is None:
                return False
            self._close(session)
            self._on_evicted()
        return True

    def _least_wanted(self, size: int, now_ms: float) -> Session | None:
        """The session that gives way to one with `size` partitions."""
        oldest = next(iter(self._sessions.values()), None)
        if oldest is not None and now_ms - oldest.used_ms > EVICT_MS:
            return oldest
        if not self._replaceable:
            return None
        partitions, session_id = self._replaceable[0]
        return self._sessions[session_id] if partitions < size else None

    def _touch(self, session: Session, now_ms: float) -> None:
        self._sessions.move_to_end(session.session_id)
        # Its place in `_replaceable` is found by the old size: remove it before the size changes.
        self._uncount(session)
        session.used_ms = now_ms
        session.size = len(session.parts)
        self.partitions += session.size
        if now_ms - session.created_ms > EVICT_MS:
            session.is_replaceable = True
            insort(self._replaceable, (session.size, session.session_id))

    def _close(self, session: Session) -> None:
        del self._sessions[session.session_id]
        self._uncount(session)

    def _uncount(self, session: Session) -> None:
        self.partitions -= session.size
        if session.is_replaceable:
            del self._replaceable[bisect_left(self._replaceable, (session.size, session.session_id))]
            session.is_replaceable = False


def _parts(request: FetchRequest, by_id: bool) -> Iterable[FetchPart]:
    for topic in request.topics:
        name: TopicKey = topic.topic_id if by_id else topic.topic
        for asked in topic.partitions:
            yield FetchPart(name, asked)


def _may_exist(topic: TopicKey) -> bool:
    return not isinstance(topic, str) or (len(topic) <= NAME_CHARACTERS_MAX and topic.isascii())


Answered: TypeAlias = tuple[FetchPart, PartitionData]


def add_by_topic(topics: list[FetchableTopicResponse], answered: Iterable[Answered]) -> None:
    """In order; neighbours of one topic stand together."""
    last: TopicKey | None = (topics[-1].topic or topics[-1].topic_id) if topics else None
    for part, answer in answered:
        if part.topic != last:
            last = part.topic
            topics.append(
                FetchableTopicResponse(topic_id=last) if isinstance(last, UUID) else FetchableTopicResponse(topic=last)
            )
        topics[-1].partitions.append(answer)
