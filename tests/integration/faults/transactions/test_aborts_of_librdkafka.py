"""An abort of librdkafka while the answer to a record is lost: docs/transactions.md says what a program does then."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.fixtures.faults import Processes, create_topic
from tests.fixtures.waiting import wait_until

CALL_S = 60
SOCKET_TIMEOUT_S = 1


@pytest.mark.timeout(300)
@pytest.mark.parametrize("cure", ["flush", "new producer"])
def test_records_behind_an_abort_are_stored(postgres_url: str, tmp_path: Path, cure: str) -> None:
    processes = Processes(SimpleNamespace(url=postgres_url, agent_url=postgres_url), tmp_path)  # type: ignore[arg-type]
    try:
        [agent] = processes.start(1)
        create_topic(agent.address, "t", partitions=1)
        reports: dict[bytes, Any] = {}
        producer = new_producer(agent.address)
        producer.begin_transaction()
        send(producer, reports, b"known")
        assert producer.flush(CALL_S) == 0
        # given a record that the agent gets and stores, after its client has given up waiting for the answer
        agent.freeze()
        send(producer, reports, b"aborted")
        time.sleep(3 * SOCKET_TIMEOUT_S)
        # when its transaction is aborted
        if cure == "flush":
            agent.thaw()
            assert producer.flush(CALL_S) == 0
            producer.abort_transaction(CALL_S)
        else:
            aborting = threading.Thread(target=producer.abort_transaction, args=(CALL_S,))
            aborting.start()
            wait_until(lambda: b"aborted" in reports)
            assert "_PURGE_QUEUE" in str(reports[b"aborted"]), "or this shows nothing"
            agent.thaw()
            aborting.join()
            producer = new_producer(agent.address)
        producer.begin_transaction()
        send(producer, reports, b"committed")
        producer.commit_transaction(CALL_S)
        # then the next one is stored
        assert reports[b"committed"] is None
        assert committed_of(agent.address) == [b"committed"]
    finally:
        processes.stop()


def new_producer(address: str) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": address,
            "transactional.id": "x",
            "linger.ms": 0,
            "socket.timeout.ms": 1_000 * SOCKET_TIMEOUT_S,
            # what was given up waits in the client until the abort
            "retry.backoff.ms": 10_000,
            "retry.backoff.max.ms": 10_000,
        }
    )
    producer.init_transactions(CALL_S)
    return producer


def send(producer: Producer, reports: dict[bytes, Any], value: bytes) -> None:
    producer.produce("t", value, partition=0, on_delivery=lambda error, _: reports.__setitem__(value, error))


def committed_of(address: str) -> list[bytes | None]:
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "g",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition("t", 0, 0)])
    found: list[bytes | None] = []
    deadline_s = time.monotonic() + CALL_S
    try:
        while time.monotonic() < deadline_s:
            message = consumer.poll(1)
            if message is None:
                continue
            if message.error() is not None:  # the end of the partition
                return found
            found.append(message.value())
    finally:
        consumer.close()
    raise AssertionError("the reader reached no end")
