"""The scenarios that every client must pass. A scenario is a row of the table in `docs/kafka-coverage.md`."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import pytest

from tests.conformance.cluster import ZONES, Cluster
from tests.conformance.confluent import Confluent
from tests.conformance.contract import CODECS, TIMEOUT_S, Client, Item, Live, NoOffsetError, Reading, Sent
from tests.fixtures.waiting import wait_until

Run: TypeAlias = Callable[[Client, Cluster], None]
PARTITIONS = 4


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    run: Run


@contextlib.contextmanager
def live(client: Client, cluster: Cluster, reading: Reading) -> Iterator[Live]:
    consumer = Live(lambda: client.consumer(cluster.bootstrap, reading))
    try:
        yield consumer
    finally:
        consumer.close()


def read(client: Client, cluster: Cluster, topic: str, count: int, *, start: int = 0) -> Sequence[Item]:
    with live(client, cluster, Reading(topic=topic, start=start)) as consumer:
        items = list(consumer.await_items(count))
    consumer.check()
    assert [item.offset for item in items] == list(range(start, start + count))
    return items


def numbered(count: int, *, size: int = 10) -> list[Sent]:
    return [Sent(b"key", b"%010d" % number * (size // 10)) for number in range(count)]


# ---- records


def codec(codec: str, client: Client, cluster: Cluster) -> None:
    """The client writes; the client and librdkafka read. Then librdkafka writes, and the client reads."""
    other = Confluent()
    for writer in (client, other) if client.name != other.name else (client,):
        topic = cluster.topic()
        offsets = writer.write(cluster.bootstrap, topic, client.records, codec=codec)
        assert list(offsets) in ([], list(range(len(client.records))))
        assert -1 not in cluster.producer_ids(topic), "it was to be idempotent"
        for reader in {client.name: client, other.name: other}.values():
            found = read(reader, cluster, topic, len(client.records))
            assert [each.content for each in found] == [each.content for each in client.records], reader.name


def large_record(client: Client, cluster: Cluster) -> None:
    topic = cluster.topic()
    [sent] = [Sent(b"k", random.Random(1).randbytes(900_000))]
    client.write(cluster.bootstrap, topic, [sent])
    [item] = read(client, cluster, topic, 1)
    assert item.content == sent.content


# ---- positions


def assign(client: Client, cluster: Cluster) -> None:
    topic = cluster.topic()
    cluster.write(topic, numbered(60))
    found = read(client, cluster, topic, 43, start=17)
    assert found[0].value == b"%010d" % 17


def ends(client: Client, cluster: Cluster) -> None:
    topic = cluster.topic()
    assert client.ends(cluster.bootstrap, topic) == (0, 0)
    cluster.write(topic, numbered(60))
    cluster.delete_records(topic, 7)
    assert client.ends(cluster.bootstrap, topic) == (7, 60)


def seek_by_time(client: Client, cluster: Cluster) -> None:
    topic = cluster.topic()
    start_ms = int(time.time() * 1000) - 100_000
    cluster.write(topic, [replace_time(each, start_ms + 1000 * at) for at, each in enumerate(numbered(60))])
    offset = client.offset_at(cluster.bootstrap, topic, start_ms + 30_500)
    assert offset == 31
    read(client, cluster, topic, 29, start=offset)


def replace_time(sent: Sent, timestamp_ms: int) -> Sent:
    return sent._replace(timestamp_ms=timestamp_ms)


LOG, CUT = 100, 90


def passed_by(reset: str, client: Client, cluster: Cluster) -> None:
    """The records before a slow consumer's position are deleted while it reads."""
    topic = cluster.topic()
    cluster.write(topic, numbered(LOG, size=20_000), at_once=5)
    with live(client, cluster, Reading(topic=topic, start=0, reset=reset, fetch_bytes=30_000)) as consumer:
        consumer.await_items(1)
        consumer.pause()
        cluster.delete_records(topic, CUT)
        consumer.resume()
        if reset == "earliest":
            wait_until(lambda: _last(consumer) == LOG - 1, TIMEOUT_S, lambda: str(_last(consumer)))
        elif reset == "latest":

            def beyond() -> bool:
                cluster.write(topic, numbered(1))
                return _last(consumer) >= LOG

            wait_until(beyond, TIMEOUT_S, lambda: str(_last(consumer)))
        else:
            wait_until(lambda: consumer.error is not None, TIMEOUT_S, lambda: str(_last(consumer)))
            assert isinstance(consumer.error, NoOffsetError), repr(consumer.error)
    offsets = [item.offset for item in consumer.items]
    before = [offset for offset in offsets if offset < CUT]
    after = offsets[len(before) :]
    assert before == list(range(len(before))) and len(before) < CUT, "it was not passed"
    if reset == "earliest":
        assert after == list(range(CUT, LOG))
    elif reset == "latest":
        assert after[0] >= LOG and after == list(range(after[0], after[0] + len(after))), after
    else:
        assert after == []


def _last(consumer: Live) -> int:
    if consumer.error is not None and not isinstance(consumer.error, NoOffsetError):
        raise consumer.error
    return consumer.items[-1].offset if consumer.items else -1


def made_anew(client: Client, cluster: Cluster) -> None:
    """A topic is deleted and created again under its name while it is read. The new one is read from its start."""
    topic = cluster.topic()
    cluster.write(topic, numbered(20))
    with live(client, cluster, Reading(topic=topic, start=0)) as consumer:
        consumer.await_items(20)
        cluster.delete(topic)
        cluster.topic_again(topic)
        cluster.write(topic, [Sent(b"new", b"%d" % number) for number in range(5)])
        items = consumer.await_items(25)[20:]
    assert [(item.offset, item.value) for item in items] == [(number, b"%d" % number) for number in range(5)]


# ---- groups


@contextlib.contextmanager
def members(client: Client, cluster: Cluster, readings: Sequence[Reading]) -> Iterator[list[Live]]:
    started: list[Live] = []
    with contextlib.ExitStack() as stack:
        for reading in readings:
            started.append(Live(partial(client.consumer, cluster.bootstrap, reading)))
            stack.callback(started[-1].close)
        yield started


def shared(members: Sequence[Live]) -> list[set[int]]:
    """Wait until each partition belongs to one member, and all members have the same number."""

    def is_shared() -> bool:
        for member in members:
            member.check()
        shares = [set(member.partitions) for member in members]
        return sorted(each for share in shares for each in share) == list(range(PARTITIONS)) and all(
            len(share) == PARTITIONS // len(members) for share in shares
        )

    wait_until(is_shared, TIMEOUT_S, lambda: str([member.partitions for member in members]))
    return [set(member.partitions) for member in members]


def write_everywhere(cluster: Cluster, topic: str, count: int) -> int:
    for number in range(PARTITIONS):
        cluster.write(topic, numbered(count), partition=number)
    return PARTITIONS * count


def places(members: Sequence[Live]) -> list[tuple[int, int]]:
    return sorted((item.partition, item.offset) for member in members for item in member.items)


def everywhere(count: int) -> list[tuple[int, int]]:
    return [(partition, offset) for partition in range(PARTITIONS) for offset in range(count)]


def await_all(members: Sequence[Live], count: int) -> None:
    def there() -> bool:
        for member in members:
            member.check()
        return sum(len(member.items) for member in members) >= count

    wait_until(there, TIMEOUT_S, lambda: str([len(member.items) for member in members]))


def rebalance(client: Client, cluster: Cluster) -> None:
    """Two members share a topic; one leaves, and the other takes over its partitions at its offsets."""
    topic = cluster.topic(PARTITIONS)
    reading = Reading(topic=topic, group=topic)
    with members(client, cluster, [reading, reading]) as (one, two):
        shared([one, two])
        await_all([one, two], write_everywhere(cluster, topic, 10))
        one.commit()
        two.commit()
        two.close()
        shared([one])
        write_everywhere(cluster, topic, 5)
        await_all([one, two], 15 * PARTITIONS)
    assert places([one, two]) == everywhere(15), "something was read twice, or not at all"


def static(client: Client, cluster: Cluster) -> None:
    """One of two static members is restarted: both keep their partitions, without a rebalance."""
    topic = cluster.topic(PARTITIONS)
    readings = [Reading(topic=topic, group=topic, instance=f"i{number}", session_ms=20_000) for number in range(2)]
    with members(client, cluster, readings) as (one, two):
        shares = shared([one, two])
        before = cluster.rebalances()
        two.close()
        with live(client, cluster, readings[1]) as again:
            assert shared([one, again]) == shares
            await_all([one, again], write_everywhere(cluster, topic, 3))
        assert cluster.rebalances() == before


def resume(client: Client, cluster: Cluster) -> None:
    topic = cluster.topic(PARTITIONS)
    reading = Reading(topic=topic, group=topic)
    write_everywhere(cluster, topic, 20)
    with live(client, cluster, reading) as first:
        await_all([first], 20 * PARTITIONS)
        first.commit()
    write_everywhere(cluster, topic, 10)
    with live(client, cluster, reading) as second:
        await_all([second], 10 * PARTITIONS)
    assert places([first, second]) == everywhere(30)


def groups_described(client: Client, cluster: Cluster) -> None:
    topic = cluster.topic(PARTITIONS)
    write_everywhere(cluster, topic, 10)
    with contextlib.closing(client.admin(cluster.bootstrap)) as admin:
        with live(Confluent(), cluster, Reading(topic=topic, group=topic)) as member:
            shared([member])
            await_all([member], 10 * PARTITIONS)
            member.commit()
            assert admin.groups()[topic] in ("Stable", "")
            assert admin.group(topic) == ("Stable", 1)
        assert admin.group(topic) == ("Empty", 0)
        assert admin.committed(topic, topic) == dict.fromkeys(range(PARTITIONS), 10)


def group_deletion(client: Client, cluster: Cluster) -> None:
    topic = cluster.topic(PARTITIONS)
    with contextlib.closing(client.admin(cluster.bootstrap)) as admin:
        with live(Confluent(), cluster, Reading(topic=topic, group=topic)) as member:
            shared([member])
            with pytest.raises(Exception, match=r"(?i)not.?empty|non.?empty|members"):
                admin.delete_group(topic)
        admin.delete_group(topic)
        assert topic not in admin.groups()


# ---- administration and placement


def topics(client: Client, cluster: Cluster) -> None:
    topic = cluster.name()
    with contextlib.closing(client.admin(cluster.bootstrap)) as admin:
        admin.create(topic, 3, {"retention.ms": "123456789"})
        with pytest.raises(Exception, match=r"(?i)exists"):
            admin.create(topic, 3, {})
        wait_until(lambda: admin.count_partitions(topic) == 3, TIMEOUT_S)
        wait_until(lambda: admin.config(topic, "retention.ms") == "123456789", TIMEOUT_S)
        admin.set_config(topic, "retention.ms", "987654321")
        # any agent may be asked; the others learn of the change a moment later
        wait_until(lambda: admin.config(topic, "retention.ms") == "987654321", TIMEOUT_S)
        admin.grow(topic, 5)
        wait_until(lambda: admin.count_partitions(topic) == 5, TIMEOUT_S)
        cluster.write(topic, numbered(20))
        admin.delete_records(topic, 8)
        assert read(Confluent(), cluster, topic, 12, start=8)
        admin.delete(topic)
        with pytest.raises(Exception, match=r"(?i)unknown.?topic|does not exist"):
            admin.delete(topic)


def zones(client: Client, cluster: Cluster) -> None:
    """A client that names its zone talks only to that zone's agents."""
    topic = cluster.topic()
    for zone, mine in zip(ZONES, cluster.processes.agents, strict=True):
        [other] = [agent for agent in cluster.processes.agents if agent is not mine]
        before = [each.metric("requests_total", api="Produce") for each in (mine, other)]
        client.write(cluster.bootstrap, topic, client.records, client_id=f"conformance,zone={zone}")
        after = [each.metric("requests_total", api="Produce") for each in (mine, other)]
        assert after[0] > before[0] and after[1] == before[1]


SCENARIOS: Sequence[Scenario] = (
    *(Scenario(f"records: {name}", partial(codec, name)) for name in CODECS),
    Scenario("records: 900 KB", large_record),
    Scenario("consume: assign from an offset", assign),
    Scenario("consume: beginning and end", ends),
    Scenario("consume: from a time", seek_by_time),
    *(
        Scenario(f"consume: auto.offset.reset={reset}", partial(passed_by, reset))
        for reset in ("earliest", "latest", "none")
    ),
    Scenario("consume: a topic made anew", made_anew),
    Scenario("groups: rebalance", rebalance),
    Scenario("groups: static members", static),
    Scenario("groups: commit and resume", resume),
    Scenario("groups: described", groups_described),
    Scenario("group deletion", group_deletion),
    Scenario("topics", topics),
    Scenario("zones", zones),
)
