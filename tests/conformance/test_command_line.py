"""`siltstone produce` and `consume` beside other clients: each reads the other's records, and keys go to the same
partitions.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer, TopicPartition

from siltstone.cli import main
from tests.fixtures.dev import Dev

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PARTITIONS = 5
TIMEOUT_S = 30
BASE_MS = 1_700_000_000_000
RECORDS = [(f"key-{number}", f"value {number} " * 9, f"{BASE_MS + number}") for number in range(60)]
"""Key, value, timestamp."""


@pytest.fixture
def run(dev: Dev) -> Any:
    def run(*words: str, stdin: str = "") -> str:
        result = CliRunner(env={"SILTSTONE_BOOTSTRAP": dev.bootstrap}).invoke(main, words, input=stdin)
        assert result.exit_code == 0, result.output
        return result.stdout

    return run


@pytest.fixture
def topic(run: Any) -> str:
    name = f"command-line-{uuid.uuid4().hex[:8]}"
    run("topics", "create", name, "--partitions", str(PARTITIONS))
    return name


def write_with_siltstone(run: Any, topic: str, codec: str) -> None:
    lines = "".join(f"{key}\t{time_ms}\t{value}\n" for key, value, time_ms in RECORDS)
    run("produce", topic, "-f", r"%k\t%T\t%v\n", "-z", codec, "-H", "from=siltstone", stdin=lines)


def write_with_confluent(bootstrap: str, topic: str, codec: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": codec, "partitioner": "murmur2_random"})
    for key, value, time_ms in RECORDS:
        producer.produce(topic, value, key, timestamp=int(time_ms), headers=[("from", b"siltstone")])
    assert producer.flush(TIMEOUT_S) == 0


def read_with_siltstone(run: Any, topic: str) -> Sequence[Any]:
    found = [json.loads(line) for line in run("consume", topic, "--until-end", "--json").splitlines()]
    return sorted(
        (r["partition"], r["offset"], r["key"], r["value"], r["timestamp_ms"], r["headers"][0]["value"]) for r in found
    )


def read_with_confluent(bootstrap: str, topic: str) -> Sequence[Any]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    found: list[Any] = []
    try:
        while len(found) < len(RECORDS):
            message = consumer.poll(TIMEOUT_S)
            assert message is not None and message.error() is None
            key, value, headers = message.key(), message.value(), message.headers()
            assert key is not None and value is not None and headers is not None
            place = (message.partition(), message.offset())
            found.append((*place, key.decode(), value.decode(), message.timestamp()[1], headers[0][1].decode()))
    finally:
        consumer.close()
    return sorted(found)


@pytest.mark.parametrize("codec", CODECS)
def test_the_command_line_and_librdkafka_write_the_same_log(dev: Dev, run: Any, topic: str, codec: str) -> None:
    other = f"{topic}-other"
    run("topics", "create", other, "--partitions", str(PARTITIONS))
    write_with_siltstone(run, topic, codec)
    write_with_confluent(dev.bootstrap, other, codec)
    # each reads both alike: same partitions by key, same order, same records
    written = read_with_confluent(dev.bootstrap, topic)
    assert len(written) == len(RECORDS) and len({each[0] for each in written}) == PARTITIONS
    assert read_with_siltstone(run, topic) == written
    assert read_with_siltstone(run, other) == written
    assert read_with_confluent(dev.bootstrap, other) == written
