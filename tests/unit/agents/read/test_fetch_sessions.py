"""Fetch sessions: the clients that get one, the partitions that an answer may leave out, and the session that goes when
there is no room.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from uuid import UUID

import pytest

from agents.read.sessions import EVICT_MS, FetchContext, FetchPart, FetchSessions, TopicKey, add_by_topic
from wire.error_codes import ErrorCode
from wire.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)

FIRST, LAST = UUID(int=1), UUID(int=2)
NO_SESSION, FULL, NONE_WANTED = 0, 0, -1


def asks(
    *wanted: tuple[TopicKey, int],
    session_id: int = 0,
    epoch: int = FULL,
    offset: int = 0,
    forgets: Iterable[tuple[TopicKey, int]] = (),
) -> FetchRequest:
    def named(key: TopicKey) -> dict[str, TopicKey]:
        return {"topic_id" if isinstance(key, UUID) else "topic": key}

    return FetchRequest(
        session_id=session_id,
        session_epoch=epoch,
        topics=[
            FetchTopic(**named(key), partitions=[FetchPartition(partition=at, fetch_offset=offset)])  # type: ignore[arg-type]
            for key, at in wanted
        ],
        forgotten_topics_data=[ForgottenTopic(**named(key), partitions=[at]) for key, at in forgets],  # type: ignore[arg-type]
    )


class Broker:
    """Gives every partition the same watermarks, unless the test says otherwise."""

    def __init__(self, *, slots_max: int = 10, partitions_max: int = 1_000) -> None:
        self.evicted = 0
        self.sessions = FetchSessions(
            slots_max=slots_max, draw=random.Random(7).random, on_evicted=self._evict, partitions_max=partitions_max
        )
        self.now_ms = 0.0
        self.ends: dict[tuple[TopicKey, int], int] = {}
        self.starts: dict[tuple[TopicKey, int], int] = {}
        self.stable: dict[tuple[TopicKey, int], int] = {}
        self.errors: dict[tuple[TopicKey, int], ErrorCode] = {}
        self.records: set[tuple[TopicKey, int]] = set()

    def _evict(self) -> None:
        self.evicted += 1

    def begin(self, request: FetchRequest, *, by_id: bool = False) -> FetchContext:
        return self.sessions.begin(request, by_id=by_id, now_ms=self.now_ms)

    def end(self, context: FetchContext) -> FetchResponse:
        if context.error:
            return FetchResponse(error_code=context.error)
        for part in context.parts:
            key = (part.topic, part.asked.partition)
            part.answer = PartitionData(
                partition_index=part.asked.partition,
                error_code=self.errors.get(key, ErrorCode.NONE),
                high_watermark=-1 if key in self.errors else self.ends.get(key, 5),
                log_start_offset=-1 if key in self.errors else self.starts.get(key, 0),
                last_stable_offset=-1 if key in self.errors else self.stable.get(key, 5),
                records=b"some" if key in self.records else b"",
            )
        return self.sessions.answer(context, now_ms=self.now_ms)

    def fetch(self, request: FetchRequest, *, by_id: bool = False) -> FetchResponse:
        return self.end(self.begin(request, by_id=by_id))

    def opens(self, *wanted: tuple[TopicKey, int], by_id: bool = False) -> int:
        return self.fetch(asks(*wanted), by_id=by_id).session_id


def told(response: FetchResponse) -> list[tuple[TopicKey, int]]:
    assert response.error_code == 0
    return [
        (topic.topic or topic.topic_id, part.partition_index)
        for topic in response.responses
        for part in topic.partitions
    ]


# ---- the clients that get one


@pytest.mark.parametrize(
    ("session_id", "epoch", "opens"),
    [(0, -1, False), (0, 0, True), (99, -1, False), (99, 0, True)],
    ids=["nothing asked", "a new one", "the end of an unknown one", "a new one for an unknown one"],
)
def test_a_full_fetch_names_everything_and_opens_a_session_if_it_is_asked_to(
    session_id: int, epoch: int, opens: bool
) -> None:
    broker = Broker()
    answer = broker.fetch(asks(("a", 0), ("a", 1), ("b", 0), session_id=session_id, epoch=epoch))
    assert told(answer) == [("a", 0), ("a", 1), ("b", 0)]
    assert (answer.session_id != 0) is opens
    assert (len(broker.sessions), broker.sessions.partitions) == ((1, 3) if opens else (0, 0))


def test_a_plain_fetch_keeps_duplicates_and_touches_nothing() -> None:
    broker = Broker()
    context = broker.begin(asks(("a", 0), ("a", 0), epoch=-1))
    assert len(context.parts) == 2
    assert (told(broker.end(context)), len(broker.sessions)) == ([("a", 0), ("a", 0)], 0)


def test_a_partition_that_is_named_twice_is_one_of_the_session_with_the_last_word() -> None:
    broker = Broker()
    request = asks(("a", 0), ("b", 0), ("a", 0))
    request.topics[2].partitions[0].fetch_offset = 7
    context = broker.begin(request)
    assert [(part.topic, part.asked.fetch_offset) for part in context.parts] == [("a", 7), ("b", 0)]
    assert broker.end(context).session_id
    assert broker.sessions.partitions == 2


@pytest.mark.parametrize("epoch", [0, -1])
def test_a_full_fetch_closes_the_session_it_names(epoch: int) -> None:
    broker = Broker()
    session_id = broker.opens(("a", 0))
    other = broker.fetch(asks(("a", 0), session_id=session_id, epoch=epoch)).session_id
    assert other != session_id
    assert len(broker.sessions) == (1 if epoch == 0 else 0)
    assert broker.fetch(asks(session_id=session_id, epoch=1)).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_without_slots_there_are_no_sessions() -> None:
    broker = Broker(slots_max=0)
    assert broker.opens(("a", 0)) == NO_SESSION


# ---- errors of the whole request


@pytest.mark.parametrize(
    ("known", "epoch", "by_id", "error"),
    [
        (False, 1, False, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        (True, 2, False, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        (True, -2, False, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        (True, 1, True, ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR),
        (True, 2, True, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        (False, 2, True, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
    ],
)
def test_what_cannot_go_on_is_refused_in_this_order(known: bool, epoch: int, by_id: bool, error: ErrorCode) -> None:
    broker = Broker()
    session_id = broker.opens(("a", 0))
    answer = broker.fetch(asks(session_id=session_id if known else session_id + 1, epoch=epoch), by_id=by_id)
    assert (answer.error_code, answer.session_id, answer.responses) == (error, 0, [])
    # and the session remains
    assert told(broker.fetch(asks(session_id=session_id, epoch=1))) == []


def test_names_may_not_go_on_with_a_session_by_id() -> None:
    broker = Broker()
    session_id = broker.opens((FIRST, 0), by_id=True)
    answer = broker.fetch(asks(("a", 0), session_id=session_id, epoch=1))
    assert answer.error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


def test_an_incremental_fetch_without_an_id_has_no_session() -> None:
    assert Broker().fetch(asks(("a", 0), epoch=3)).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_the_epoch_after_the_last_is_the_first() -> None:
    broker = Broker()
    session_id = broker.opens(("a", 0))
    broker.sessions._sessions[session_id].epoch = 0x7FFFFFFF
    assert broker.fetch(asks(session_id=session_id, epoch=0x7FFFFFFF)).error_code == 0
    assert broker.fetch(asks(session_id=session_id, epoch=0x7FFFFFFF)).error_code
    assert broker.fetch(asks(session_id=session_id, epoch=1)).error_code == 0


# ---- the contents of answers


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"ends": {("a", 1): 6}}, [("a", 1)]),
        ({"starts": {("b", 0): 2}}, [("b", 0)]),
        ({"stable": {("a", 0): 3}}, [("a", 0)]),
        ({"records": {("a", 0)}}, [("a", 0)]),
        ({"errors": {("a", 1): ErrorCode.KAFKA_STORAGE_ERROR}}, [("a", 1)]),
    ],
    ids=["nothing", "a high watermark", "a log start", "a last stable offset", "records", "an error"],
)
def test_only_what_is_new_is_told_and_once(changes: dict[str, object], expected: list[tuple[str, int]]) -> None:
    broker = Broker()
    session_id = broker.opens(("a", 0), ("a", 1), ("b", 0))
    for name, value in changes.items():
        setattr(broker, name, value)
    answer = broker.fetch(asks(session_id=session_id, epoch=1))
    assert (answer.session_id, told(answer)) == (session_id, expected)
    again = told(broker.fetch(asks(session_id=session_id, epoch=2)))
    assert again == (expected if changes.keys() & {"records", "errors"} else []), "records and errors are always told"


@pytest.mark.parametrize("in_full", [True, False])
def test_after_an_error_the_partition_is_told_again(in_full: bool) -> None:
    broker = Broker()
    error = {("a", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    broker.errors = error if in_full else {}
    session_id = broker.opens(("a", 0), ("b", 0))
    broker.errors = error
    assert told(broker.fetch(asks(session_id=session_id, epoch=1))) == [("a", 0)]
    broker.errors = {}
    assert told(broker.fetch(asks(session_id=session_id, epoch=2))) == [("a", 0)]
    assert told(broker.fetch(asks(session_id=session_id, epoch=3))) == []


def test_partitions_are_added_changed_and_forgotten() -> None:
    broker = Broker()
    session_id = broker.opens(("a", 0), ("a", 1))
    added = asks(("c", 3), session_id=session_id, epoch=1, forgets=[("a", 0), ("never", 9)])
    assert told(broker.fetch(added)) == [("c", 3)]
    assert broker.sessions.partitions == 2
    moved = broker.begin(asks(("a", 1), session_id=session_id, epoch=2, offset=4))
    assert [(part.topic, part.asked.partition, part.asked.fetch_offset) for part in moved.parts] == [
        ("a", 1, 4),
        ("c", 3, 0),
    ]
    assert told(broker.end(moved)) == []


def test_a_topic_made_anew_is_added_by_its_new_id_as_the_old_one_is_forgotten() -> None:
    broker = Broker()
    session_id = broker.opens((FIRST, 0), by_id=True)
    answer = broker.fetch(asks((LAST, 0), session_id=session_id, epoch=1, forgets=[(FIRST, 0)]), by_id=True)
    assert told(answer) == [(LAST, 0)]
    assert broker.sessions.partitions == 1


def test_what_is_added_and_forgotten_at_once_is_forgotten() -> None:
    broker = Broker()
    session_id = broker.opens(("a", 0))
    assert told(broker.fetch(asks(("b", 0), session_id=session_id, epoch=1, forgets=[("b", 0)]))) == []
    assert broker.sessions.partitions == 1


@pytest.mark.parametrize("name", ["n" * 250, "\u0101"])
def test_names_that_no_topic_can_have_are_answered_and_not_kept(name: str) -> None:
    broker = Broker()
    broker.errors[name, 0] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    # in a full fetch
    answer = broker.fetch(asks((name, 0), ("n" * 249, 0)))
    assert told(answer) == [(name, 0), ("n" * 249, 0)]
    assert broker.sessions.partitions == 1
    # and in the following ones
    again = broker.fetch(asks((name, 0), session_id=answer.session_id, epoch=1))
    assert told(again) == [(name, 0)]
    assert told(broker.fetch(asks(session_id=answer.session_id, epoch=2))) == []
    assert broker.sessions.partitions == 1
    # and alone they are no session
    assert broker.opens((name, 0)) == 0
    assert len(broker.sessions) == 1


def test_a_session_with_nothing_left_ends() -> None:
    broker = Broker()
    session_id = broker.opens(("a", 0))
    answer = broker.fetch(asks(session_id=session_id, epoch=1, forgets=[("a", 0)]))
    assert (answer.session_id, told(answer)) == (0, [])
    assert (len(broker.sessions), broker.sessions.partitions) == (0, 0)


def test_partitions_that_gave_records_come_last_next_time() -> None:
    broker = Broker()
    session_id = broker.opens(("a", 0), ("a", 1), ("b", 0))
    broker.records, broker.ends = {("a", 0)}, {("a", 1): 9}
    assert told(broker.fetch(asks(session_id=session_id, epoch=1))) == [("a", 0), ("a", 1)]
    order = [(part.topic, part.asked.partition) for part in broker.begin(asks(session_id=session_id, epoch=2)).parts]
    assert order == [("a", 1), ("b", 0), ("a", 0)], "a watermark alone does not move it"


# ---- two requests at once


def test_an_answer_whose_session_has_moved_on_is_refused_and_spoils_nothing() -> None:
    broker = Broker()
    session_id = broker.opens(("a", 0), ("b", 0))
    slow = broker.begin(asks(session_id=session_id, epoch=1))
    quick = broker.begin(asks(("a", 0), session_id=session_id, epoch=2, offset=3))
    assert not {id(part) for part in slow.parts} & {id(part) for part in quick.parts}
    broker.ends = {("a", 0): 6}
    answer = broker.end(slow)
    assert (answer.error_code, answer.session_id) == (ErrorCode.INVALID_FETCH_SESSION_EPOCH, session_id)
    assert told(broker.end(quick)) == [("a", 0)], "the other was not taken for told"


def test_a_request_whose_client_went_away_does_not_hold_the_session() -> None:
    broker = Broker()
    session_id = broker.opens(("a", 0))
    broker.begin(asks(session_id=session_id, epoch=1))  # never answered
    assert told(broker.fetch(asks(session_id=session_id, epoch=2))) == []


# ---- room


def many(count: int, name: str = "t") -> Sequence[tuple[TopicKey, int]]:
    return [(name, at) for at in range(count)]


@pytest.mark.parametrize(
    ("idle_ms", "old_size", "new_size", "replaced"),
    [
        (EVICT_MS, 2, 1, False),
        (EVICT_MS + 1, 2, 1, True),
        (0, 1, 5, False),
    ],
    ids=["not idle for long enough", "idle", "larger than a young one"],
)
def test_a_full_house_replaces_the_idle_whatever_its_size(
    idle_ms: int, old_size: int, new_size: int, replaced: bool
) -> None:
    broker = Broker(slots_max=1)
    assert broker.opens(*many(old_size))
    broker.now_ms += idle_ms
    assert bool(broker.opens(*many(new_size))) is replaced
    assert (len(broker.sessions), broker.evicted) == (1, int(replaced))
    assert broker.sessions.partitions == (new_size if replaced else old_size)


@pytest.mark.parametrize(("new_size", "replaced"), [(2, None), (3, None), (4, 3), (9, 3)])
def test_a_newcomer_replaces_the_smallest_of_the_old_if_that_is_smaller(new_size: int, replaced: int | None) -> None:
    broker = Broker(slots_max=3)
    by_size = {size: broker.opens(*many(size)) for size in (5, 3)}
    # given: both are in use and older than the limit, a third one is young and small
    broker.now_ms += EVICT_MS + 1
    for session_id in by_size.values():
        broker.fetch(asks(session_id=session_id, epoch=1))
    young = broker.opens(*many(1))
    assert bool(broker.opens(*many(new_size))) is (replaced is not None)
    gone = {
        size
        for size, session_id in by_size.items()
        if broker.fetch(asks(session_id=session_id, epoch=2)).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    }
    assert gone == (set() if replaced is None else {replaced})
    assert broker.fetch(asks(session_id=young, epoch=1)).error_code == 0


def test_the_one_not_used_for_longest_goes_first() -> None:
    broker = Broker(slots_max=2)
    first, second = broker.opens(("a", 0)), broker.opens(("b", 0))
    broker.now_ms += EVICT_MS
    broker.fetch(asks(session_id=first, epoch=1))
    broker.now_ms += EVICT_MS
    assert broker.opens(("c", 0))
    assert broker.fetch(asks(session_id=second, epoch=1)).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert broker.fetch(asks(session_id=first, epoch=2)).error_code == 0


def test_a_session_that_is_replaced_while_it_answers_still_answers() -> None:
    broker = Broker(slots_max=1)
    session_id = broker.opens(("a", 0))
    parked = broker.begin(asks(session_id=session_id, epoch=1))
    broker.now_ms += EVICT_MS + 1
    assert broker.opens(("b", 0))
    assert told(broker.end(parked)) == []
    assert broker.fetch(asks(session_id=session_id, epoch=2)).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert broker.sessions.partitions == 1


def test_the_partitions_of_all_sessions_are_bounded() -> None:
    broker = Broker(partitions_max=10)
    assert broker.opens(*many(11)) == NO_SESSION, "more than there may be at all"
    first, second = broker.opens(*many(6)), broker.opens(*many(4))
    assert first and second
    assert broker.opens(("a", 0)) == NO_SESSION
    # when: one grows beyond the bound, it ends, and the client begins again
    grown = broker.fetch(asks(("new", 0), session_id=second, epoch=1))
    assert grown.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert (len(broker.sessions), broker.sessions.partitions, broker.evicted) == (1, 6, 1)
    assert broker.opens(*many(4))
    # and: a session that shrinks makes room
    broker.fetch(asks(session_id=first, epoch=1, forgets=many(3)))
    assert broker.sessions.partitions == 7
    assert broker.opens(*many(3))


def test_ids_are_positive_and_never_used_twice_at_once() -> None:
    drawn = iter([0.0, 0.0, 0.5, 0.9999999999999999])
    sessions = FetchSessions(slots_max=9, draw=lambda: next(drawn))
    ids: list[int] = []
    for _ in range(3):
        context = sessions.begin(asks(("a", 0)), by_id=False, now_ms=0)
        ids.append(sessions.answer(context, now_ms=0).session_id)
    assert ids == [1, 1 + (2**31 - 2) // 2, 2**31 - 2]


@pytest.mark.parametrize("topic", ["t", UUID(int=7)])
def test_a_topic_whose_parts_are_answered_in_several_turns_stands_once_in_the_answer(topic: TopicKey) -> None:
    answered = [
        (FetchPart(topic, FetchPartition(partition=n, fetch_offset=0, partition_max_bytes=1)), PartitionData())
        for n in range(5)
    ]
    topics: list[FetchableTopicResponse] = []
    for some in (answered[:2], answered[2:4], answered[4:]):
        add_by_topic(topics, some)
    assert [len(each.partitions) for each in topics] == [5]
