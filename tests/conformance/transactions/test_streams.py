"""Kafka Streams with `exactly_once_v2`: the program of the page about transactions counts each word once, while it and
the agents are killed."""

from __future__ import annotations

import random
import re
from collections import defaultdict
from pathlib import Path

import pytest
from confluent_kafka import Producer

from bench.servers.kafka import Jars
from tests.conformance.cluster import Cluster
from tests.conformance.transactions.committed import Committed, agent_kills, amid
from tests.conformance.transactions.running import Running, jars_at_hand, java, started
from tests.fixtures.idempotent_load import fresh_seed

PAGE = Path(__file__).parents[3] / "docs" / "transactions.md"
PROGRAM = re.compile(r"^```java\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ADDRESS = "127.0.0.1:9092"
PARTITIONS = 2
LINES, WORDS_PER_LINE = 1_500, 4
WORDS = ["alder", "birch", "cedar", "dogwood", "elm", "fir", "ginkgo", "hazel"]


def program_of_the_page(cluster: Cluster, folder: Path) -> Path:
    """The page's example as it stands, but for the address."""
    [text] = PROGRAM.findall(PAGE.read_text())
    assert text.count(ADDRESS) == 1
    path = folder / "WordCount.java"
    path.write_text(text.replace(ADDRESS, cluster.bootstrap))
    return path


def write_lines(cluster: Cluster, chance: random.Random) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "partitioner": "random"})
    for _ in range(LINES):
        producer.produce("lines", " ".join(chance.choices(WORDS, k=WORDS_PER_LINE)))
    assert producer.flush(60) == 0


@pytest.fixture(scope="module")
def jars() -> Jars:
    """Asked for before the agents, so that none start where there are no jars."""
    return jars_at_hand("kafka-streams")


@pytest.mark.timeout(900)
def test_a_word_count_of_kafka_streams_is_exact_while_it_and_the_agents_are_killed(
    jars: Jars, cluster: Cluster, tmp_path: Path
) -> None:
    chance = random.Random(fresh_seed())
    cluster.topic(PARTITIONS, name="lines")
    cluster.topic(PARTITIONS, name="counts")
    path = program_of_the_page(cluster, tmp_path)
    streams = [Running(tmp_path / f"instance-{number}", java(jars, str(path))) for number in range(2)]
    kills = [*agent_kills(cluster), *(each.kill_and_start for each in streams), streams[0].stop_and_start]
    with started(streams):
        write_lines(cluster, chance)
        with Committed(cluster.bootstrap, "counts", PARTITIONS) as output:
            total = LINES * WORDS_PER_LINE
            amid(kills, chance, output, total, streams)
            seen = output.await_no_more()
    assert [each.failures for each in streams] == [0, 0], "\n".join(each.told() for each in streams)
    counts: defaultdict[bytes | None, list[int]] = defaultdict(list)
    for each in seen:
        counts[each.key].append(int(each.value or b""))
    # every count of every word, each once, in order: nothing was counted twice, left out, or taken back
    assert {word: found for word, found in counts.items() if found != list(range(1, len(found) + 1))} == {}
    assert sum(map(len, counts.values())) == total
