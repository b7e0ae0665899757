"""Clients that must prove themselves again every two seconds, while they write: no record is lost, and no error is
heard."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.conformance.clients import CLIENTS
from tests.conformance.contract import Live, Reading
from tests.conformance.programs import Java
from tests.conformance.security.logins import of_librdkafka
from tests.conformance.security.secured import SecuredAgent, secured_agent

REAUTHENTICATE_MS = 2_000
WRITE_S = 10
TIMEOUT_S = 60


@pytest.fixture(scope="module")
def forgetful(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredAgent]:
    with secured_agent(
        tmp_path_factory.mktemp("forgetful"), **{"listener.sasl.connections.max.reauth.ms": REAUTHENTICATE_MS}
    ) as agent:
        yield agent


@pytest.mark.timeout(300)
def test_librdkafka_goes_on_writing(forgetful: SecuredAgent) -> None:
    way = forgetful.sasl("SCRAM-SHA-512")
    topic = forgetful.topic()
    errors: list[Any] = []
    delivered: list[Any] = []
    config: dict[str, Any] = {**of_librdkafka(way.login), "bootstrap.servers": way.bootstrap, "linger.ms": 5}
    producer = Producer({**config, "error_cb": errors.append})
    end_s = time.monotonic() + WRITE_S
    sent = 0
    while time.monotonic() < end_s:
        producer.produce(topic, b"%d" % sent, on_delivery=lambda error, _: delivered.append(error))
        sent += 1
        producer.poll(0.01)
    assert producer.flush(TIMEOUT_S) == 0
    assert errors == []
    assert delivered == [None] * sent
    assert values(forgetful, topic, sent) == [b"%d" % each for each in range(sent)]


@pytest.mark.timeout(300)
def test_the_java_client_goes_on_writing(forgetful: SecuredAgent) -> None:
    java = Java()
    if reason := java.absent():
        pytest.skip(reason)
    way = forgetful.sasl("SCRAM-SHA-256")
    topic = forgetful.topic()
    sent = java.coming_in_by(way.login).write_for(way.bootstrap, topic, WRITE_S)
    assert sent > 0
    assert values(forgetful, topic, sent) == [b"%d" % each for each in range(sent)]


def values(agent: SecuredAgent, topic: str, count: int) -> list[bytes | None]:
    reader = next(client for client in CLIENTS if client.always_there)
    live = Live(lambda: reader.consumer(agent.plain, Reading(topic=topic, start=0)))
    try:
        return [item.value for item in live.await_items(count)]
    finally:
        live.close()
