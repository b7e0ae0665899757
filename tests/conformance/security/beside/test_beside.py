"""Every API in every version beside Apache Kafka, under random sets of ACLs: the same codes, the same omissions.

Each question goes to both servers as the same bytes, but for the ids of topics and nodes. First the super user asks
everything: what differs then has nothing to do with rights, and OF_SERVERS has to explain it. Then a set of ACLs is put
on both, and clients ask everything again. Where a server does not say to them what it says to the super user, both have
to say the same.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest

from tests.conformance.security.beside.acl_sets import KEPT, drawn_set, put
from tests.conformance.security.beside.comparing import (
    Comparison,
    Difference,
    Pair,
    Question,
    differences,
    differences_for_super_user,
)
from tests.conformance.security.beside.known import OF_REFUSALS, OF_SERVERS, reason_for
from tests.conformance.security.beside.questions import QUESTIONS
from tests.conformance.security.beside.sides import ADMIN, ANONYMOUS, Side
from wire.api import APIS

SETS = 12
"""About two minutes."""
CLIENTS = ("ann", ANONYMOUS)


@pytest.mark.soak
@pytest.mark.timeout(3_600)
async def test_kafka_gives_the_same_answers(kafka: Side, ours: Side) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    await asyncio.gather(kafka.open(), ours.open())
    try:
        await _compare(Comparison(kafka, ours), seed, SETS)
    finally:
        await asyncio.gather(kafka.close(), ours.close())


async def _compare(comparison: Comparison, seed: int, sets: int) -> None:
    begun_s = time.monotonic()
    print(f"only Kafka has the APIs {comparison.of_kafka_alone}")
    by_super_user = await _ask_as_super_user(comparison)
    wrong: list[str] = []
    explained: Counter[str] = Counter()
    asked = refused = 0
    for number in range(sets):
        acls = drawn_set(random.Random(seed + number))
        await asyncio.gather(*(put(side, acls) for side in comparison.sides))
        for user in CLIENTS:
            async for question, pair in comparison.all_as(user):
                asked += 1
                refused += pair.kafka != by_super_user[question].kafka
                for difference in differences(question, pair, by_super_user[question]):
                    known = reason_for(difference, OF_REFUSALS)
                    if known is not None:
                        explained[known.reason] += 1
                    else:
                        wrong.append(f"ACLs of seed {seed + number}, {user}: {difference}")
    print(
        f"{asked} questions about {sets} sets of ACLs in {time.monotonic() - begun_s:.0f} s, of which {refused} were"
        f" refused something; {sum(explained.values())} differences with a reason, {len(wrong)} without"
    )
    for reason, times in explained.items():
        print(f"{times} times: {reason}")
    assert wrong == [], "\n".join(wrong[:50])
    assert 0.1 < refused / asked < 0.99


async def _ask_as_super_user(comparison: Comparison) -> Mapping[Question, Pair]:
    await asyncio.gather(*(put(side, [KEPT]) for side in comparison.sides))
    answers: dict[Question, Pair] = {}
    wrong: list[Difference] = []
    used: set[str] = set()
    async for question, pair in comparison.all_as(ADMIN):
        answers[question] = pair
        for difference in differences_for_super_user(question, pair):
            known = reason_for(difference, OF_SERVERS)
            if known is None:
                wrong.append(difference)
            else:
                used.add(known.reason)
    print(f"{len(answers)} questions in {len({(each.key, each.version) for each in answers})} versions of APIs")
    assert wrong == [], "\n".join(map(str, wrong[:50]))
    assert used == {each.reason for each in OF_SERVERS}, "a reason that explains nothing any more"
    return answers


# ---- without Kafka


def test_every_api_of_ours_is_asked() -> None:
    assert QUESTIONS.keys() == APIS.keys()


def _seen(asked: Pair, by_super_user: Pair) -> Sequence[str]:
    return [each.path for each in differences(Question(3, 9, "all"), asked, by_super_user)]


def test_what_differs_for_everybody_hides_no_refusal() -> None:
    by_super_user = Pair({"a": 0, "b": 0, "of Kafka": "there"}, {"a": 35, "b": 0})
    allowed = Pair({"a": 0, "b": 0, "of Kafka": "there"}, {"a": 35, "b": 0})
    assert _seen(allowed, by_super_user) == []
    refused_alike = Pair({"a": 29, "b": 29}, {"a": 29, "b": 29})
    assert _seen(refused_alike, by_super_user) == []
    assert _seen(Pair({"a": 29, "b": 0}, {"a": 35, "b": 0}), by_super_user) == ["a"]
    assert _seen(Pair({"a": 0, "b": 0}, {"a": 29, "b": 0}), by_super_user) == ["a"]
    assert _seen(Pair({"a": 0}, {"a": 35, "b": 0}), by_super_user) == ["b"]
    assert _seen(Pair({"a": 29, "b": 29}, {"a": 29, "b": 30}), by_super_user) == ["b"]
