"""SIGTERM of one of two agents, as processes: under ordinary producers and consumers, and with clients that stay."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runtime.errors import UnavailableError
from siltstone.kafka.client import connected
from siltstone.kafka.records import fetch_partitions
from tests.fixtures.faults import AgentProcess, Processes, create_topic, named
from tests.fixtures.idempotent_load import AiokafkaWriter, LibrdkafkaWriter, Load
from tests.fixtures.steady_readers import AiokafkaReader, LibrdkafkaReader
from tests.fixtures.waiting import wait_until
from wire.error_codes import ErrorCode
from wire.messages.metadata import MetadataResponse

PARTITIONS = 4


def leader_of_one(address: str, topic: str) -> int:
    """Port of the agent that leads its first partition. The topic's random id decides which one that is."""

    async def ask() -> MetadataResponse:
        async with connected(address) as client:
            return await client.metadata([topic])

    answer = asyncio.run(ask())
    [found] = answer.topics
    leader = next(each.leader_id for each in found.partitions if each.partition_index == 0)
    return next(broker.port for broker in answer.brokers if broker.node_id == leader)


def takes_connections(agent: AgentProcess) -> bool:
    try:
        socket.create_connection(("127.0.0.1", agent.port), timeout=1).close()
    except ConnectionRefusedError:
        return False
    return True


def _when(condition: Callable[[], bool], timeout_s: float = 20) -> float:
    wait_until(condition, timeout_s)
    return time.monotonic()


class LibrdkafkaWriterThatListens(LibrdkafkaWriter):
    """Every report of librdkafka to the application counts as a finding, except that a connection was lost."""

    def __init__(self, name: str, **to: Any) -> None:
        super().__init__(name, options={"error_cb": self._told}, **to)

    def _told(self, error: Any) -> None:
        if error.code() != error._TRANSPORT:
            self.failed.append(f"{self.name}: {error}")


def test_one_of_two_agents_goes_under_load_and_no_client_sees_an_error(postgres_url: str, tmp_path: Path) -> None:
    processes = Processes(SimpleNamespace(url=postgres_url, agent_url=postgres_url), tmp_path)  # type: ignore[arg-type]
    try:
        agents = processes.start(2)
        processes.until_all_know_all()
        create_topic(processes.bootstrap, "t", partitions=PARTITIONS)
        port = leader_of_one(agents[0].address, "t")
        goes, stays = sorted(agents, key=lambda agent: agent.port != port)
        to: dict[str, Any] = {"topic": "t", "partitions": PARTITIONS}
        with (
            Load(processes.bootstrap, writers=[LibrdkafkaWriterThatListens, AiokafkaWriter], **to) as load,
            LibrdkafkaReader(processes.bootstrap, **to) as reader,
            AiokafkaReader(processes.bootstrap, **to) as other_reader,
        ):
            load.until_more(300)
            # given: writers and readers use the one that will go
            wait_until(lambda: goes.metric("produce_batches_total") > 0 and goes.metric("fetch_bytes_total") > 0)
            goes.begin_stop()
            left = _when(lambda: named(stays.address) == {stays.port})
            assert takes_connections(goes), "first it leaves the answers, then it stops serving"
            assert named(goes.address) == {stays.port}, "its own answers too"
            closed = _when(lambda: not takes_connections(goes))
            # Not `stop`: a second signal may come when the process no longer listens to any.
            assert goes.await_end() == 0, goes.log
            gone = time.monotonic()
            # then: all go on through the other, soon
            load.until_more(300)
            resumed = time.monotonic()
            acknowledged = load.finish_and_check(stays.address)
            for each in (reader, other_reader):
                each.until(len(acknowledged))
                assert each.found == acknowledged
        print(
            f"left, {closed - left:.2f} s later closed, gone after {gone - closed:.2f} s, on after {resumed - gone:.2f}"
        )
        assert resumed - closed < 20
        assert "not drained in time" not in goes.log
    finally:
        processes.stop()


def test_a_second_signal_ends_the_wait_for_clients_that_stay(postgres_url: str, tmp_path: Path) -> None:
    processes = Processes(SimpleNamespace(url=postgres_url, agent_url=postgres_url), tmp_path)  # type: ignore[arg-type]
    try:
        goes, _ = processes.start(2, drain_notice_ms=600_000, log_level="info")
        processes.until_all_know_all()
        create_topic(processes.bootstrap, "t", partitions=1)

        async def stay() -> None:
            """Fetch as if nothing had happened, to the end of the connection."""
            async with connected(goes.address) as client:
                refused = 0
                while refused < 3:
                    [answer] = await fetch_partitions(client, {("t", 0): 0}, max_wait_ms=0)
                    refused += answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
                    await asyncio.sleep(0.1)
                assert goes.is_running
                goes.begin_stop()
                while True:
                    await client.metadata([])
                    await asyncio.sleep(0.1)

        goes.begin_stop()
        began = time.monotonic()
        with pytest.raises(UnavailableError):
            asyncio.run(stay())
        assert goes.await_end() == 0, goes.log
        assert time.monotonic() - began < 20
        assert "second stop signal: clients are not waited for" in goes.log
        assert "clients are sent to the other agents" in goes.log and "clients were sent away" in goes.log
    finally:
        processes.stop()
