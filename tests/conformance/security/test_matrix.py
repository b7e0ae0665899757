"""Every client by every way in: it writes, reads, and reads as a member of a group. Who may not come in, or may not do
a thing, is told so by the client in its own words, and the client does not storm the agent meanwhile."""

from __future__ import annotations

import gc
import logging
import re
import time
import warnings
from collections.abc import Callable, Iterator, Sequence

import pytest
from _pytest.mark import ParameterSet

from tests.conformance.clients import CLIENTS
from tests.conformance.contract import Client, Live, Reading
from tests.conformance.security.refusals import WORDS
from tests.conformance.security.secured import MECHANISMS, OWN, SecuredAgent, Way
from tests.fixtures.waiting import wait_until

HOUR_S = 3_600
WAYS = ("SSL", "mTLS", *(f"SASL_SSL {each}" for each in MECHANISMS))
WRONG: dict[str, tuple[str, Callable[[SecuredAgent], Way]]] = {
    "wrong password, PLAIN": ("proof", lambda agent: agent.sasl("PLAIN", password="wrong")),
    "wrong password, SCRAM-SHA-256": ("proof", lambda agent: agent.sasl("SCRAM-SHA-256", password="wrong")),
    "wrong password, SCRAM-SHA-512": ("proof", lambda agent: agent.sasl("SCRAM-SHA-512", password="wrong")),
    "no such user": ("proof", lambda agent: agent.sasl("SCRAM-SHA-512", "nobody", "wrong")),
    "a token for others": ("proof", lambda agent: agent.bearer(aud="others")),
    "an expired token": (
        "expired",
        lambda agent: agent.bearer(iat=int(time.time()) - 2 * HOUR_S, exp=int(time.time()) - HOUR_S),
    ),
    "an agent of an unknown CA": ("server", lambda agent: agent.tls(ca=agent.certificates.other_ca)),
    "a certificate of an unknown CA": (
        "certificate",
        lambda agent: agent.mtls(agent.certificates.client_of_other),
    ),
}
TRIES_MAX = 60
"""Connections that a client may open before it gives up."""
pytestmark = [pytest.mark.timeout(300), pytest.mark.matrix]


def cells(rows: Sequence[str], *, always_there: bool) -> Sequence[ParameterSet]:
    return [
        pytest.param(client, row, id=f"{client.name}-{row}".replace(" ", "_"), marks=marks(client, row))
        for client in CLIENTS
        for row in rows
        if client.always_there is always_there
    ]


def marks(client: Client, row: str) -> Sequence[pytest.MarkDecorator]:
    # kafka-python tries for 10 s and more after a refusal, kcat for 30 s if its token has expired.
    is_long = client.name == "kafka-python" or (client.name, row) == ("kcat", "an expired token")
    return [pytest.mark.soak] if client.is_heavy or is_long else []


def each_client(rows: Sequence[str]) -> pytest.MarkDecorator:
    found = [cells(rows, always_there=there) for there in (True, False)]
    return pytest.mark.parametrize(("client", "row"), [cell for each in found for cell in each])


@pytest.fixture(autouse=True)
def aiokafka_speaks(caplog: pytest.LogCaptureFixture) -> None:
    """Fixtures of other tests silence it for good."""
    caplog.set_level(logging.INFO, logger="aiokafka")


@pytest.fixture(autouse=True)
def sockets_left_behind(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """aiokafka leaves sockets of refused clients to the garbage collector, which would find them in another test."""
    yield
    caplog.get_records("call").clear()  # a record holds an error, and its traceback the socket
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def at_hand(client: Client, way: Way) -> Client:
    if reason := client.absent():
        pytest.skip(reason)
    if reason := client.unable_to(way.login):
        pytest.skip(reason)
    return client.coming_in_by(way.login)


def read(client: Client, way: Way, reading: Reading, count: int) -> None:
    live = Live(lambda: client.consumer(way.bootstrap, reading))
    try:
        contents = [item.content for item in live.await_items(count)]
        if reading.group:
            live.commit()
    finally:
        live.close()
    assert contents == [record.content for record in client.records[:count]]


@each_client(WAYS)
def test_a_client_writes_and_reads(secured: SecuredAgent, client: Client, row: str) -> None:
    way = secured.ways[row]
    client = at_hand(client, way)
    topic = secured.topic()
    client.write(way.bootstrap, topic, client.records)
    read(client, way, Reading(topic=topic, start=0), len(client.records))
    read(client, way, Reading(topic=topic, group=topic), len(client.records))


@each_client(tuple(WRONG))
def test_who_may_not_come_in_is_told_by_the_client(
    secured: SecuredAgent, client: Client, row: str, caplog: pytest.LogCaptureFixture
) -> None:
    kind, way_of = WRONG[row]
    way = way_of(secured)
    client = at_hand(client, way)
    topic = secured.topic()
    for work in (
        lambda: client.write(way.bootstrap, topic, client.records),
        lambda: read(client, way, Reading(topic=topic, group=topic), 1),
    ):
        caplog.clear()
        before = secured.refusals()
        with pytest.raises(Exception) as caught:
            work()
        heard = f"{caplog.text}\n{caught.type.__name__}: {caught.value}"
        words = WORDS[client.name]
        assert re.search(getattr(words, kind) or words.proof, heard), heard[-3_000:]
        assert secured.refusals() - before <= TRIES_MAX


@each_client(("may", "topic", "read", "group"))
def test_a_user_may_do_what_the_acls_say_and_hears_what_not(
    secured: SecuredAgent, client: Client, row: str, caplog: pytest.LogCaptureFixture
) -> None:
    ways = (secured.sasl(mechanism, "bob") for mechanism in ("SCRAM-SHA-256", "PLAIN"))
    way = next(each for each in ways if client.absent() or not client.unable_to(each.login))
    client = at_hand(client, way)
    own, other = secured.topic(OWN), secured.topic()
    if row == "may":
        client.write(way.bootstrap, own, client.records)
        read(client, way, Reading(topic=own, group=OWN + own), len(client.records))
        return
    words = WORDS[client.name]
    pattern = words.group if row == "group" else words.topic
    if row == "topic":
        with pytest.raises(Exception) as caught:
            client.write(way.bootstrap, other, client.records)
        heard = f"{caught.type.__name__}: {caught.value}"
    else:
        reading = Reading(topic=other, group=OWN + other) if row == "read" else Reading(topic=own, group=other)
        heard = heard_by_a_reader(client, way, reading, caplog, pattern)
    assert re.search(pattern, heard), heard[-3_000:]


def heard_by_a_reader(
    client: Client, way: Way, reading: Reading, caplog: pytest.LogCaptureFixture, pattern: str
) -> str:
    """The text of its error, or its log if it goes on for the sake of its other topics."""
    live = Live(lambda: client.consumer(way.bootstrap, reading))
    try:
        wait_until(lambda: live.error is not None or re.search(pattern, caplog.text))
    finally:
        live.close()
    assert live.items == []
    return f"{caplog.text}\n{type(live.error).__name__}: {live.error}"


def test_every_client_has_its_words() -> None:
    assert list(WORDS) and set(WORDS) == {client.name for client in CLIENTS}
