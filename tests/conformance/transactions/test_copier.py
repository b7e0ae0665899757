"""Kafka's TransactionalMessageCopier, which its own system tests use: it reads a partition, and writes what it reads to
the same partition of another topic, in transactions some of which it aborts. Copiers and agents are killed meanwhile,
and the copy is the same as the original: every record once, in the same order.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.conformance.cluster import Cluster
from tests.conformance.transactions.committed import Committed, agent_kills, amid
from tests.conformance.transactions.java import JavaProcess, jars_at_hand
from tests.fixtures.idempotent_load import fresh_seed

COPIER = "org.apache.kafka.tools.TransactionalMessageCopier"
PARTITIONS = 2
TRANSACTIONS, PER_TRANSACTION = 60, 50
COPIED_AT_ONCE = 20
TIMEOUT_S = 60


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


@pytest.mark.timeout(900)
@pytest.mark.parametrize("in_a_group", [False, True], ids=["of partitions", "in a group"])
def test_copiers_copy_exactly_while_they_and_the_agents_are_killed(
    cluster: Cluster, tmp_path: Path, *, in_a_group: bool
) -> None:
    jars = jars_at_hand("kafka-tools")
    chance = random.Random(fresh_seed())
    source, target = cluster.topic(PARTITIONS), cluster.topic(PARTITIONS)
    expected = write_in_transactions(cluster, source, chance)
    words = ["--broker-list", cluster.bootstrap, "--input-topic", source, "--output-topic", target]
    words += ["--consumer-group", target, "--transaction-size", str(COPIED_AT_ONCE), "--transaction-timeout", "10000"]
    words += ["--enable-random-aborts", "--use-group-metadata", *(["--group-mode"] if in_a_group else [])]
    copiers = [
        JavaProcess(
            *(jars, tmp_path / str(number), COPIER, *words),
            *("--input-partition", str(number), "--transactional-id", f"{target}-{number}"),
        )
        for number in range(PARTITIONS)
    ]
    kills = [*agent_kills(cluster), *(each.kill_and_start for each in copiers), copiers[0].stop_and_start]
    try:
        for each in copiers:
            each.start()
        with Committed(cluster.bootstrap, target, PARTITIONS) as output:
            amid(kills, chance, output, sum(map(len, expected.values())), copiers)
            seen = output.await_no_more()
    finally:
        for each in copiers:
            each.kill()
    copied: defaultdict[int, list[bytes | None]] = defaultdict(list)
    for each in seen:
        copied[each.partition].append(each.value)
    assert copied == expected
    print(f"copiers ended by themselves {[each.failures for each in copiers]} times")
