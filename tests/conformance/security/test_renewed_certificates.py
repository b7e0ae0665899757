"""Certificates of the listeners that are replaced while clients write and read. No client sends anything twice, so a
request that is lost is an error that the client tells."""

from __future__ import annotations

import os
import signal
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, partial
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.conformance.clients import CLIENTS
from tests.conformance.contract import Client, Live, Reading
from tests.conformance.programs import Java, Program
from tests.conformance.security.logins import of_librdkafka
from tests.conformance.security.secured import SecuredAgent, Way, secured_agent
from tests.fixtures.waiting import wait_until

WRITE_S = 45
"""Longer than some renewals by signal, and one by the look every ten seconds, even on a busy machine."""
TIMEOUT_S = 60


@pytest.fixture(scope="module")
def renewing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredAgent]:
    with secured_agent(tmp_path_factory.mktemp("renewing")) as agent:
        yield agent


@cache
def _second_program() -> Program:
    return Program(Java().command())


class JavaOnce(Java):
    """Sends nothing twice."""

    def security(self) -> Mapping[str, str]:
        return {**super().security(), "retries": "0", "enable.idempotence": "false"}


class JavaReader(Java):
    """In a process of its own: it polls while the other one writes."""

    def program(self) -> Program:
        return _second_program()


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_librdkafka_writes_and_reads_on(renewing: SecuredAgent) -> None:
    def write(way: Way, topic: str) -> int:
        errors: list[Any] = []
        delivered: list[Any] = []
        config: dict[str, Any] = {**of_librdkafka(way.login), "bootstrap.servers": way.bootstrap, "linger.ms": 5}
        producer = Producer({**config, "retries": 0, "enable.idempotence": False, "error_cb": errors.append})
        end_s = time.monotonic() + WRITE_S
        sent = 0
        while time.monotonic() < end_s:
            producer.produce(topic, b"%d" % sent, on_delivery=lambda error, _: delivered.append(error))
            sent += 1
            producer.poll(0.01)
        assert producer.flush(TIMEOUT_S) == 0
        assert errors == [], "no connection was lost"
        assert delivered == [None] * sent
        return sent

    reader = next(client for client in CLIENTS if client.always_there)
    check_renewals(renewing, write, [renewing.tls(), renewing.sasl("SCRAM-SHA-512")], reader)


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_the_java_client_writes_and_reads_on(renewing: SecuredAgent) -> None:
    if reason := Java().absent():
        pytest.skip(reason)

    def write(way: Way, topic: str) -> int:
        return JavaOnce().coming_in_by(way.login).write_for(way.bootstrap, topic, WRITE_S)

    for client in (JavaOnce(), JavaReader()):  # their programs start before the time runs
        client.ends(renewing.plain, renewing.topic())
    check_renewals(renewing, write, [renewing.sasl("SCRAM-SHA-512")], JavaReader())


def check_renewals(
    agent: SecuredAgent, write: Callable[[Way, str], int], writes_by: Sequence[Way], reader: Client
) -> None:
    """A topic for each way to write, while certificates are renewed. Readers come in by a certificate of their own and
    by a password."""
    reads_by = (agent.mtls(), agent.sasl("SCRAM-SHA-256"))[: len(writes_by)]
    topics = [agent.topic() for _ in writes_by]
    with ThreadPoolExecutor() as threads:
        writing: list[Future[int]] = [
            threads.submit(write, way, topic) for way, topic in zip(writes_by, topics, strict=True)
        ]
        reading = [
            Live(partial(reader.coming_in_by(way.login).consumer, way.bootstrap, Reading(topic=topic, start=0)))
            for way, topic in zip(reads_by, topics, strict=True)
        ]
        try:
            for live, each in zip(reading, writing, strict=True):
                wait_until(lambda live=live, each=each: live.items or each.done() or live.check(), TIMEOUT_S)
            renewals = 0
            while not any(each.done() for each in writing):
                renew(agent, by_signal=renewals != 1)  # the second one is seen by the look every ten seconds
                renewals += 1
            assert renewals >= 3, "the last one may be too late to say anything"
            for live, each in zip(reading, writing, strict=True):
                count = each.result(TIMEOUT_S + WRITE_S)
                assert count > 100
                assert [item.value for item in live.await_items(count)] == [b"%d" % number for number in range(count)]
        finally:
            for live in reading:
                live.close()
    assert agent.refusals() == 0


def renew(agent: SecuredAgent, *, by_signal: bool) -> None:
    """Returns when listeners show another certificate to those who come."""
    ways = (agent.tls(), agent.sasl("PLAIN"))
    before = [served(agent, way) for way in ways]
    files = agent.certificates.authority.server().write(agent.certificates.directory / "server")
    if by_signal:
        os.kill(agent.agent.pid, signal.SIGHUP)
    wait_until(lambda: all(served(agent, way) == files.cert.read_text() for way in ways), 30)
    assert files.cert.read_text() not in before


def served(agent: SecuredAgent, way: Way) -> str:
    host, _, port = way.bootstrap.rpartition(":")
    return ssl.get_server_certificate((host, int(port)), ca_certs=str(agent.certificates.ca), timeout=20)
