"""Copiers of several clients read a partition, and write what they read to the same partition of another topic, in
transactions of which they abort some. Copiers and agents are killed meanwhile, and the copy is the same as the
original: every record once, in the same order. One of them is Kafka's TransactionalMessageCopier, of its system tests.
"""

from __future__ import annotations

import random
import shutil
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import pytest
from confluent_kafka import Producer

from tests.conformance.cluster import Cluster
from tests.conformance.programs import FOLDER, built
from tests.conformance.transactions.committed import Committed, agent_kills, amid
from tests.conformance.transactions.running import Running, jars_at_hand, java, started
from tests.fixtures.idempotent_load import fresh_seed

PARTITIONS = 2
TRANSACTIONS, PER_TRANSACTION = 60, 50
COPIED_AT_ONCE = 20
TIMEOUT_S = 60


@dataclass(frozen=True, slots=True)
class Work:
    bootstrap: str
    source: str
    target: str
    number: int
    """Of the copier, and of its partition if it is in no group."""

    @property
    def words(self) -> Sequence[str]:
        """The target names the group and the transactional ids."""
        return self.bootstrap, self.source, self.target, self.target, str(self.number)


Command: TypeAlias = Callable[[Work], Sequence[str]]
"""Skips the test where it cannot run."""


def of_kafka(*more: str) -> Command:
    def command(work: Work) -> Sequence[str]:
        words = ["--broker-list", work.bootstrap, "--input-topic", work.source, "--output-topic", work.target]
        words += ["--consumer-group", work.target, "--transactional-id", f"{work.target}-{work.number}"]
        words += ["--transaction-size", str(COPIED_AT_ONCE), "--transaction-timeout", "10000"]
        words += ["--input-partition", str(work.number), "--enable-random-aborts", "--use-group-metadata", *more]
        return java(jars_at_hand("kafka-tools"), "org.apache.kafka.tools.TransactionalMessageCopier", *words)

    return command


def of_go(name: str) -> Command:
    def command(work: Work) -> Sequence[str]:
        if shutil.which("go") is None:
            pytest.skip("Go is not on the PATH")
        return str(built(f"copiers/{name}")), *work.words

    return command


def of_python(name: str) -> Command:
    return lambda work: (sys.executable, str(FOLDER / "copiers" / f"{name}.py"), *work.words)


def write_in_transactions(cluster: Cluster, topic: str, chance: random.Random) -> Mapping[int, Sequence[bytes]]:
    """Numbers in order, in transactions of which some are aborted. Returns what was committed of each partition."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": topic})
    producer.init_transactions(TIMEOUT_S)
    committed: defaultdict[int, list[bytes]] = defaultdict(list)
    for first in range(0, TRANSACTIONS * PER_TRANSACTION, PER_TRANSACTION):
        aborts = chance.random() < 0.2
        producer.begin_transaction()
        for number in range(first, first + PER_TRANSACTION):
            partition = number % PARTITIONS
            producer.produce(topic, b"%d" % number, partition=partition)
            if not aborts:
                committed[partition].append(b"%d" % number)
        (producer.abort_transaction if aborts else producer.commit_transaction)(TIMEOUT_S)
    return committed


def copy_amid_kills(cluster: Cluster, folder: Path, command: Command) -> None:
    chance = random.Random(fresh_seed())
    source, target = cluster.topic(PARTITIONS), cluster.topic(PARTITIONS)
    works = [Work(cluster.bootstrap, source, target, number) for number in range(PARTITIONS)]
    copiers = [Running(folder / str(each.number), command(each)) for each in works]
    expected = write_in_transactions(cluster, source, chance)
    kills = [*agent_kills(cluster), *(each.kill_and_start for each in copiers), copiers[0].stop_and_start]
    with started(copiers), Committed(cluster.bootstrap, target, PARTITIONS) as output:
        amid(kills, chance, output, sum(map(len, expected.values())), copiers)
        seen = output.await_no_more()
        copied: defaultdict[int, list[bytes | None]] = defaultdict(list)
        for each in seen:
            copied[each.partition].append(each.value)
        assert copied == expected
        print("\n".join(each.tended() for each in copiers))


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(of_kafka(), id="Kafka's"),
        pytest.param(of_kafka("--group-mode"), id="Kafka's in a group"),
        pytest.param(of_go("franz-go"), id="franz-go in a group", marks=pytest.mark.soak),
        pytest.param(of_go("sarama"), id="sarama", marks=pytest.mark.soak),
    ],
)
def test_copiers_that_are_at_hand_are_exact_while_they_and_the_agents_are_killed(
    request: pytest.FixtureRequest, tmp_path: Path, command: Command
) -> None:
    command(Work("", "", "", 0))  # skips before agents start
    copy_amid_kills(request.getfixturevalue("cluster"), tmp_path, command)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["with_aiokafka", "with_librdkafka"])
def test_copiers_in_python_are_exact_while_they_and_the_agents_are_killed(
    cluster: Cluster, tmp_path: Path, name: str
) -> None:
    copy_amid_kills(cluster, tmp_path, of_python(name))
