"""One question after the other to both servers at once, and what is made good after those that change something."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tests.conformance.security.beside.acl_sets import KEPT, create, delete_of
from tests.conformance.security.beside.questions import ACKS_0, MADE_BY_READING, QUESTIONS, SESSION
from tests.conformance.security.beside.shown import Shown, shown
from tests.conformance.security.beside.sides import DOOMED_TOPICS, Side, versions_in_common
from tests.fixtures.agents import RawConnection
from wire.api import APIS
from wire.error_codes import ErrorCode
from wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from wire.messages.fetch import FetchRequest, FetchResponse
from wire.schema import Message

ABSENT = "absent"
_METADATA, _DELETE_TOPICS, _CREATE_ACLS, _DELETE_ACLS, _DELETE_GROUPS, _OFFSET_DELETE = 3, 20, 30, 31, 42, 47


class Question(NamedTuple):
    key: int
    version: int
    label: str

    def __str__(self) -> str:
        return f"{APIS[self.key].name} v{self.version} ({self.label})"


@dataclass(frozen=True, slots=True)
class Pair:
    """The answers of both servers to one question."""

    kafka: Shown
    ours: Shown


class Difference(NamedTuple):
    question: Question
    path: str
    kafka: object
    ours: object

    def __str__(self) -> str:
        return f"{self.question} {self.path}: Kafka {self.kafka}, Siltstone {self.ours}"


def differences(question: Question, asked: Pair, by_super_user: Pair) -> Iterator[Difference]:
    """Where the answers differ, unless each server says to the client what it says to a super user: then neither
    has refused anything."""
    for path in sorted(asked.kafka.keys() | asked.ours.keys() | by_super_user.kafka.keys() | by_super_user.ours.keys()):
        kafka, ours = asked.kafka.get(path, ABSENT), asked.ours.get(path, ABSENT)
        as_super_user = (by_super_user.kafka.get(path, ABSENT), by_super_user.ours.get(path, ABSENT))
        if kafka != ours and (kafka, ours) != as_super_user:
            yield Difference(question, path, kafka, ours)


def differences_for_super_user(question: Question, asked: Pair) -> Iterator[Difference]:
    for path in sorted(asked.kafka.keys() | asked.ours.keys()):
        kafka, ours = asked.kafka.get(path, ABSENT), asked.ours.get(path, ABSENT)
        if kafka != ours:
            yield Difference(question, path, kafka, ours)


class Client:
    """One user at one server. A connection that the server closes is opened again."""

    def __init__(self, side: Side, user: str) -> None:
        self.side, self._user = side, user
        self._raw: RawConnection | None = None

    async def ask(self, question: Question, request: Message) -> Shown:
        if self._raw is None:
            self._raw = await self.side.connect(self._user)
        try:
            if question.label.startswith(ACKS_0):
                await self._raw.begin(request, question.version)
                await self._raw.call(ApiVersionsRequest(), ApiVersionsResponse, 0)
                return {"connection": "stays"}
            answer = await self._raw.call(request, APIS[question.key].response, question.version)
            if question.label.startswith(SESSION) and isinstance(answer, FetchResponse):
                again = FetchRequest(max_wait_ms=0, min_bytes=0, session_id=answer.session_id, session_epoch=1)
                answer = await self._raw.call(again, FetchResponse, question.version)
        except (asyncio.IncompleteReadError, ConnectionError):
            await self.close()
            return {"connection": "closed"}
        except TimeoutError as error:
            raise AssertionError(f"{self.side.name} does not answer {question}") from error
        return shown(answer, self.side.ids, self.side.node_id)

    async def close(self) -> None:
        if self._raw is not None:
            await self._raw.close()
            self._raw = None


class Comparison:
    def __init__(self, kafka: Side, ours: Side) -> None:
        self.sides = (kafka, ours)
        self._versions = versions_in_common(self.sides)
        self.of_kafka_alone = sorted(kafka.versions.keys() - self._versions.keys())

    async def all_as(self, user: str) -> AsyncIterator[tuple[Question, Pair]]:
        """Every question, in the user's name."""
        clients = [Client(side, user) for side in self.sides]
        try:
            for key, versions in self._versions.items():
                for version in versions:
                    for asks in QUESTIONS[key]:
                        # Both requests are made when it is their turn: ids may have changed.
                        both = zip(*(asks(version, side) for side in self.sides), strict=True)
                        for (label, to_kafka), (_, to_us) in both:
                            question = Question(key, version, label)
                            answers = await asyncio.gather(
                                clients[0].ask(question, to_kafka), clients[1].ask(question, to_us)
                            )
                            yield question, Pair(*answers)
                            await asyncio.gather(
                                *(
                                    made_good(client.side, question, answer)
                                    for client, answer in zip(clients, answers, strict=True)
                                )
                            )
        finally:
            await asyncio.gather(*(client.close() for client in clients))


async def made_good(side: Side, question: Question, answer: Shown) -> None:
    """Undo what the question did, if it was allowed."""
    if question.key == _METADATA and question.label == "made by reading":
        codes = [
            value
            for path, value in answer.items()
            if path.startswith(f".topics[{MADE_BY_READING}]") and path.endswith("].error_code")
        ]
        if ErrorCode.TOPIC_AUTHORIZATION_FAILED not in codes:
            await side.until(MADE_BY_READING, exists=True)
            await side.delete_topic(MADE_BY_READING)
    elif question.key == _DELETE_TOPICS:
        await side.make_topics(DOOMED_TOPICS)
    elif question.key == _CREATE_ACLS:
        await delete_of(side, "User:made")
    elif question.key == _DELETE_ACLS:
        await create(side, [KEPT])
    elif question.key in (_DELETE_GROUPS, _OFFSET_DELETE):
        await side.commit_offsets()
