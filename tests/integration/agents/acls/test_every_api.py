"""Every API in every version, asked by a client that may do nothing and by one that may do everything."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, cast
from uuid import UUID

import pytest

from agents.dispatch import HANDLERS, NOTHING
from agents.request_context import ANONYMOUS
from agents.security.audit import Audit, Question
from agents.security.rights import JudgedRights
from metadata.transactions.contract import InitProducer
from security.acls.values import Operation, ResourceType
from tests.fixtures.acls import everything_to
from tests.fixtures.agents import Dial, RawConnection, RunningAgent, StartAgent
from tests.integration.agents.test_every_version import REQUESTS
from wire.api import APIS
from wire.error_codes import ErrorCode
from wire.messages.delete_topics import DeleteTopicsResponse
from wire.messages.describe_cluster import DescribeClusterRequest
from wire.schema import Message

TOPIC, GROUP = ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.GROUP_AUTHORIZATION_FAILED
CLUSTER, TRANSACTION = ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
REFUSALS = {TOPIC, GROUP, CLUSTER, TRANSACTION}
NO_ID = ErrorCode.UNKNOWN_TOPIC_ID
BY_ID_SINCE = {0: 13, 1: 13, 3: 12, 20: 6}
"""From these versions on a request also names a topic that does not exist by its id, and ids are no secret."""
ALTER_CONFIGS = {33, 44}
TRANSACTIONAL = {24, 25, 26, 65}
OMITS = {16, 60, 66}
"""Nothing is refused: what the client may not see is left out."""
GOES_ON: Mapping[int, set[tuple[ResourceType, Operation]]] = {
    3: {(ResourceType.TOPIC, Operation.CREATE)},
    8: {(ResourceType.TOPIC, Operation.READ)},
    9: {(ResourceType.TOPIC, Operation.DESCRIBE)},
    20: {(ResourceType.TOPIC, Operation.DELETE)},
    24: {(ResourceType.TOPIC, Operation.WRITE)},
    25: {(ResourceType.GROUP, Operation.READ)},
    28: {(ResourceType.GROUP, Operation.READ), (ResourceType.TOPIC, Operation.READ)},
}
"""Questions that follow the one that ends a request, or a part of it, with `acl.mode=on`. Shadow does not end there,
and tells of these too."""
METADATA, DELETE_TOPICS, INIT_PRODUCER_ID, DESCRIBE_CONFIGS, DESCRIBE_LOG_DIRS, DESCRIBE_CLUSTER = 3, 20, 22, 32, 35, 60
TXN_OFFSET_COMMIT = 28


def refused(key: int, version: int) -> set[ErrorCode]:
    """The errors in the answer to a client that may do nothing: all of them, and nothing but them."""
    if key in OMITS or (key == DESCRIBE_LOG_DIRS and version < 3):
        return set()
    if key == INIT_PRODUCER_ID:
        return {TRANSACTION if version % 2 else CLUSTER}
    if key == TXN_OFFSET_COMMIT:  # the transactional id is asked for before the group
        return {TRANSACTION}
    if key == DESCRIBE_CONFIGS:
        return {TOPIC, GROUP, CLUSTER}
    if key in ALTER_CONFIGS:  # the requests are about topics
        return {TOPIC}
    if key in TRANSACTIONAL:  # the id is asked before any topic and group
        return {TRANSACTION}
    kinds = {kind for kind, _ in HANDLERS[key].needs}
    if ResourceType.GROUP in kinds:  # asked before any topic
        codes = {GROUP}
    elif ResourceType.TOPIC in kinds:
        codes = {TOPIC}
    else:
        codes = {TRANSACTION if kinds == {ResourceType.TRANSACTIONAL_ID} else CLUSTER}
    return codes | ({NO_ID} if version >= BY_ID_SINCE.get(key, 99) else set())


def codes_in(part: object) -> Iterator[int]:
    if isinstance(part, list):
        for each in cast("list[object]", part):
            yield from codes_in(each)
    elif is_dataclass(part):
        for each in fields(part):
            value = getattr(part, each.name)
            if each.name.endswith("error_code"):
                yield value
            else:
                yield from codes_in(value)


def with_id(request: Any, topic_id: UUID) -> Message:
    """The request names topic "t" by id too, which newer versions of some APIs look at alone."""
    for name in ("topic_data", "topics"):
        topics: list[Any] = getattr(request, name, None) or []
        for topic in topics:
            if "t" in (getattr(topic, "name", ""), getattr(topic, "topic", "")) and hasattr(topic, "topic_id"):
                topic.topic_id = topic_id
                if type(topic).__name__ == "DeleteTopicState":
                    topic.name = None
    return request


@dataclass
class Asked:
    """The rights that handlers ask for."""

    pairs: set[tuple[ResourceType, Operation]] = field(default_factory=set[tuple[ResourceType, Operation]])


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    seen = Asked()

    def recorded(name: str) -> None:
        real = getattr(JudgedRights, name)

        def ask(self: JudgedRights, operation: Operation, resource_type: ResourceType, *more: str) -> bool:
            seen.pairs.add((resource_type, operation))
            return real(self, operation, resource_type, *more)

        monkeypatch.setattr(JudgedRights, name, ask)

    for name in ("allows", "sees", "holds", "allows_any"):
        recorded(name)
    return seen


@dataclass
class Served:
    running: RunningAgent
    raw: RawConnection
    topic_id: UUID


async def made(running: RunningAgent) -> UUID:
    """The topic and the transactional id that the requests name."""
    topic = await running.metadata.agents.create_topic("t", partitions=2, configs={})
    init = InitProducer(transactional_id="tx", timeout_ms=60_000, new_producer_id=1)
    await running.metadata.transactions.init_producer(init, owner=running.agent._lease())
    return topic.topic_id


@pytest.fixture
async def served(dial: Dial, start_agent: StartAgent) -> AsyncIterator[Served]:
    running = await start_agent(acl_mode="on")
    topic_id = await made(running)
    yield Served(running, await dial.raw(running.address), topic_id)


APIS_WITH_NEEDS: Sequence[tuple[int, int]] = [
    (key, version)
    for key, handler in sorted(HANDLERS.items(), key=lambda item: item[0] == DELETE_TOPICS)
    if handler.needs != NOTHING
    for version in range(APIS[key].accepted[0], APIS[key].accepted[1] + 1)
]


async def ask(served: Served, key: int, version: int) -> Message:
    request = with_id(REQUESTS[key](version), served.topic_id)
    if key == DESCRIBE_CLUSTER:
        request = DescribeClusterRequest(include_cluster_authorized_operations=True)
    return await served.raw.call(request, APIS[key].response, version)


async def test_who_may_do_nothing_is_refused_everything_with_kafkas_codes(served: Served, asked: Asked) -> None:
    for key, version in APIS_WITH_NEEDS:
        asked.pairs.clear()
        answer = await ask(served, key, version)
        codes = set(codes_in(answer)) - {ErrorCode.NONE}
        assert codes == refused(key, version), (APIS[key].name, version, answer)
        assert asked.pairs, (APIS[key].name, version)
        assert asked.pairs <= HANDLERS[key].needs, (APIS[key].name, version)


async def test_who_may_do_everything_is_refused_nothing(served: Served, asked: Asked) -> None:
    served.running.agent.authorizer.change(added=list(everything_to(ANONYMOUS)))
    for key, version in APIS_WITH_NEEDS:
        if key in (29, 30, 31):
            continue
        asked.pairs.clear()
        answer = await ask(served, key, version)
        assert not REFUSALS & set(codes_in(answer)), (APIS[key].name, version, answer)
        assert asked.pairs <= HANDLERS[key].needs, (APIS[key].name, version)


async def test_who_has_no_right_to_the_cluster_needs_rights_to_topics_and_groups(served: Served, asked: Asked) -> None:
    acls = [acl for acl in everything_to(ANONYMOUS) if acl.resource_type is not ResourceType.CLUSTER]
    served.running.agent.authorizer.change(added=acls)
    for key, version in APIS_WITH_NEEDS:
        asked.pairs.clear()
        answer = await ask(served, key, version)
        of_cluster_alone = all(kind is ResourceType.CLUSTER for kind, _ in HANDLERS[key].needs)
        expected: set[ErrorCode] = (
            refused(key, version) if of_cluster_alone else {CLUSTER} if key == DESCRIBE_CONFIGS else set()
        )
        assert REFUSALS & set(codes_in(answer)) == expected, (APIS[key].name, version, answer)
        assert asked.pairs <= HANDLERS[key].needs, (APIS[key].name, version)


async def test_a_refusal_does_not_tell_whether_there_is_such_a_topic(
    served: Served, start_agent: StartAgent, dial: Dial
) -> None:
    empty = await start_agent(acl_mode="on")
    other = Served(empty, await dial.raw(empty.address), served.topic_id)
    for key, version in APIS_WITH_NEEDS:
        if version >= BY_ID_SINCE.get(key, 99):
            continue
        there, not_there = await ask(served, key, version), await ask(other, key, version)
        if key in (METADATA, DESCRIBE_CLUSTER):  # the brokers differ
            assert getattr(there, "topics", []) == getattr(not_there, "topics", [])
        else:
            for answer in (there, not_there):
                if isinstance(answer, DeleteTopicsResponse):  # shuffled on purpose
                    answer.responses.sort(key=lambda each: each.name or "")
            assert there == not_there, APIS[key].name


async def test_off_asks_nothing(start_agent: StartAgent, dial: Dial, asked: Asked) -> None:
    running = await start_agent(acl_mode="off")
    topic_id = await made(running)
    served = Served(running, await dial.raw(running.address), topic_id)
    for key, version in APIS_WITH_NEEDS:
        if key in (29, 30, 31):
            continue
        answer = await ask(served, key, version)
        assert not REFUSALS & set(codes_in(answer)), (APIS[key].name, version, answer)
    assert not asked.pairs


@dataclass
class Denials:
    """The questions that the audit log hears while an API is asked, by the word it would use."""

    heard: list[tuple[str, Question]] = field(default_factory=list[tuple[str, Question]])

    def take(self, word: str) -> Counter[tuple[ResourceType, str, Operation]]:
        """Each question with the times that it was asked. All of them had this word."""
        heard, self.heard = self.heard, []
        assert {said for said, _ in heard} <= {word}
        return Counter((question.resource_type, question.name, question.operation) for _, question in heard)


@pytest.fixture
def denials(monkeypatch: pytest.MonkeyPatch) -> Denials:
    denials = Denials()
    real = Audit._tell  # pyright: ignore[reportPrivateUsage]

    def tell(self: Audit, verdict: str, question: Question) -> None:
        denials.heard.append((verdict, question))
        real(self, verdict, question)

    monkeypatch.setattr(Audit, "_tell", tell)
    return denials


async def test_shadow_tells_each_denial_that_on_gives_and_refuses_nothing(
    start_agent: StartAgent, dial: Dial, denials: Denials
) -> None:
    told: dict[str, dict[tuple[int, int], Counter[tuple[ResourceType, str, Operation]]]] = {"on": {}, "shadow": {}}
    for mode, word in (("on", "denied"), ("shadow", "would be denied")):
        running = await start_agent(acl_mode=mode)
        raw = await dial.raw(running.address)
        # What changes ACLs comes last: it would change the answers to the others.
        for key, version in sorted(APIS_WITH_NEEDS, key=lambda item: item[0] in (30, 31)):
            topics = {each.name: each for each in (await running.metadata.agents.snapshot()).topics}
            topic = topics.get("t")  # shadow lets the request before this one delete it
            if topic is None:
                topic = await running.metadata.agents.create_topic("t", partitions=2, configs={})
            answer = await ask(Served(running, raw, topic.topic_id), key, version)
            told[mode][key, version] = denials.take(word)
            assert mode == "on" or not REFUSALS & set(codes_in(answer)), (APIS[key].name, version, answer)
    for (key, version), denied in told["on"].items():
        would_be, name = told["shadow"][key, version], (APIS[key].name, version)
        assert not denied - would_be, name
        assert {(kind, operation) for kind, _, operation in would_be - denied} <= GOES_ON.get(key, set()), name
        assert set((would_be - denied).values()) <= {1}, name


def test_every_handler_says_what_it_needs() -> None:
    """A new row cannot leave it out; it may say NOTHING, which this list must know then."""
    without: Mapping[int, str] = {key: APIS[key].name for key, handler in HANDLERS.items() if not handler.needs}
    assert set(without) == {17, 18, 36, 38, 39, 40, 41}
