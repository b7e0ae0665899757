"""The Java client in transactions: the records that readers see, the producers that are fenced, and how a producer goes
on after an error. Kafka's own integration tests of transactions ask the same questions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from bench.servers.kafka import Jars
from tests.conformance.cluster import Cluster
from tests.conformance.transactions.java_client import Got, JavaClients, JavaProducer
from tests.conformance.transactions.running import jars_at_hand
from tests.fixtures.waiting import wait_until

pytestmark = pytest.mark.timeout(400)
WAIT_S = 90


@pytest.fixture(scope="module")
def jars() -> Jars:
    """Asked for before the agents, so that none start where there are no jars."""
    return jars_at_hand("kafka-clients")


@pytest.fixture(scope="module")
def java(jars: Jars, cluster: Cluster) -> Iterator[JavaClients]:
    clients = JavaClients(jars, cluster.bootstrap)
    yield clients
    clients.end()


def values(found: Sequence[Got]) -> list[str]:
    return [each.value for each in found]


def begun(java: JavaClients, transactional_id: str, **settings: object) -> JavaProducer:
    """A producer in a transaction."""
    producer = java.producer(transactional_id, **settings)
    producer.init()
    producer.begin()
    return producer


def all_of(java: JavaClients, topic: str, count: int, *, committed: bool = True) -> list[str]:
    """The topic's first records. Whatever may not be there would come with them or right after."""
    reader = java.consumer(committed=committed)
    reader.assign(topic)
    found = reader.read(count) + reader.poll(1.0)
    reader.close()
    return values(found)


# ---- readers


def test_the_second_protocol_is_in_force(java: JavaClients) -> None:
    assert java.feature() == 2


def test_readers_see_what_was_committed_and_others_all(java: JavaClients, cluster: Cluster) -> None:
    topic, other = cluster.topic(), cluster.topic()
    producer = begun(java, topic)
    producer.send(topic, "1")
    producer.send(other, "2")
    producer.abort()
    producer.begin()
    producer.send(topic, "3")
    producer.send(other, "4")
    producer.commit()
    for name, aborted, committed in ((topic, "1", "3"), (other, "2", "4")):
        assert all_of(java, name, 1) == [committed]
        assert all_of(java, name, 2, committed=False) == [aborted, committed]
    assert java.consumer().end(topic) == 4, "two records, two markers"


def test_what_is_undecided_is_not_seen_nor_reached_by_a_seek_to_the_end_or_by_time(
    java: JavaClients, cluster: Cluster
) -> None:
    topic = cluster.topic()
    now_ms = int(time.time() * 1000)
    early, late = begun(java, f"{topic}-early"), begun(java, f"{topic}-late")
    early.send(topic, "early 1", time_ms=now_ms)
    late.send(topic, "late 1", "late 2", time_ms=now_ms + 1)
    early.send(topic, "early 2", time_ms=now_ms + 1)
    early.commit()
    everything, reader = java.consumer(committed=False), java.consumer()
    everything.assign(topic)
    assert values(everything.read(4)) == ["early 1", "late 1", "late 2", "early 2"]
    assert everything.at_time(topic, now_ms + 1) == 1

    reader.assign(topic)
    assert values(reader.read(1) + reader.poll(1.0)) == ["early 1"], "all else is behind an open transaction"
    assert reader.end(topic) == 1
    assert reader.at_time(topic, now_ms + 1) is None

    late.abort()
    assert values(reader.read(1) + reader.poll(1.0)) == ["early 2"]
    assert reader.end(topic) == 6, "four records, two markers"
    assert reader.at_time(topic, now_ms + 1) == 1, "the log's, and the record there is skipped"


def test_a_fetch_that_waits_for_more_learns_of_the_aborted(java: JavaClients, cluster: Cluster) -> None:
    topic = cluster.topic()
    kept, dropped = begun(java, f"{topic}-kept"), begun(java, f"{topic}-dropped")
    kept.send(topic, "1")
    dropped.send(topic, "2", "3")
    kept.send(topic, "4")
    reader = java.consumer(fetch_min_bytes=100_000, fetch_max_wait_ms=2_000)
    reader.assign(topic)
    assert reader.poll(1.0) == []
    dropped.abort()
    kept.commit()
    found = reader.read(2)
    assert found + reader.poll(3.0) == [Got(0, 0, "1"), Got(0, 3, "4")]


def test_markers_of_many_partitions(java: JavaClients, cluster: Cluster) -> None:
    topics = [cluster.topic(10), cluster.topic(10)]
    places = [(topic, partition) for topic in topics for partition in range(10)]
    producer = begun(java, topics[0])
    for topic, partition in places:
        producer.send(topic, "aborted", partition=partition)
    producer.abort()
    producer.begin()
    for topic, partition in places[:13]:
        producer.send(topic, "committed", partition=partition)
    producer.commit()
    for index, (topic, partition) in enumerate(places):
        reader = java.consumer()
        reader.assign(topic, partition)
        if index < 13:
            assert reader.read(1) == [Got(partition, 2, "committed")]
        assert reader.end(topic, partition) == (4 if index < 13 else 2)
        reader.close()


def test_one_transaction_after_another_is_aborted(java: JavaClients, cluster: Cluster) -> None:
    topic = cluster.topic()
    producer = begun(java, topic)
    for number in range(5):
        producer.send(topic, f"aborted {number}")
        producer.abort()
        producer.begin()
    producer.send(topic, "committed")
    producer.commit()
    assert all_of(java, topic, 1) == ["committed"]
    assert len(all_of(java, topic, 6, committed=False)) == 6
    [(_, epoch)] = java.epochs(topic)
    assert epoch >= 5, "each end gives the next epoch"


def test_an_empty_transaction_leaves_nothing(java: JavaClients, cluster: Cluster) -> None:
    topic = cluster.topic()
    producer = begun(java, topic)
    producer.commit()
    producer.begin()
    producer.abort()
    producer.begin()
    producer.send(topic, "1")
    producer.commit()
    assert all_of(java, topic, 1) == ["1"]
    assert java.consumer().end(topic) == 2


# ---- offsets of groups


def test_offsets_move_with_the_records_and_keep_their_metadata(java: JavaClients, cluster: Cluster) -> None:
    topic, group = cluster.topic(), cluster.name()
    reader = java.consumer(group_id=group)
    producer = begun(java, topic)
    producer.offsets(topic, 110, group=group, metadata="some words")
    producer.abort()
    assert reader.committed(topic) is None
    producer.begin()
    producer.offsets(topic, 110, group=group, metadata="some words")
    producer.commit()
    assert reader.committed(topic) == (110, "some words")


def test_records_are_copied_once_with_the_metadata_of_the_group(java: JavaClients, cluster: Cluster) -> None:
    source, target = cluster.topic(), cluster.topic()
    writer = begun(java, source)
    writer.send(source, *(str(number) for number in range(100)))
    writer.commit()
    producer = java.producer(target)
    producer.init()
    copied = 0
    while copied < 100:
        # each member takes the group over from the one before, which aborted and went
        member = java.consumer(group_id=target, max_poll_records=20)
        member.subscribe(source)
        for commits in (True, False):
            found = member.read(1)
            producer.begin()
            producer.send(target, *values(found))
            producer.offsets(source, found[-1].offset + 1, member=member)
            (producer.commit if commits else producer.abort)()
            copied += len(found) * commits
            if copied == 100:
                break
        member.close()
    assert all_of(java, target, 100) == [str(number) for number in range(100)]


def test_the_metadata_of_a_member_that_was_replaced_is_refused_and_the_producer_may_abort(
    java: JavaClients, cluster: Cluster
) -> None:
    topic, group = cluster.topic(), cluster.name()
    writer = begun(java, topic)
    writer.send(topic, "1")
    writer.commit()
    old = java.consumer(group_id=group, group_instance_id="one", session_timeout_ms=30_000)
    old.subscribe(topic)
    old.read(1)
    new = java.consumer(group_id=group, group_instance_id="one", session_timeout_ms=30_000)
    new.subscribe(topic)
    new.read(1)
    producer = begun(java, f"{topic}-producer")
    producer.send(topic, "of the old")
    with pytest.raises(RuntimeError, match=r"FencedInstanceIdException|CommitFailedException"):
        producer.offsets(topic, 1, member=old)
    producer.abort()
    producer.begin()
    producer.send(topic, "of the new")
    producer.offsets(topic, 1, member=new)
    producer.commit()
    assert all_of(java, topic, 2) == ["1", "of the new"]
    new.close()


# ---- fencing


FENCED = r"ProducerFencedException|InvalidProducerEpochException"


def _commit(old: JavaProducer, topic: str) -> None:
    old.commit()


def _abort(old: JavaProducer, topic: str) -> None:
    old.abort()


def _send(old: JavaProducer, topic: str) -> None:
    old.send(topic, "late")


def _offsets(old: JavaProducer, topic: str) -> None:
    old.offsets(topic, 1, group=topic)


@pytest.mark.parametrize("late", [_commit, _abort, _send, _offsets], ids=lambda each: each.__name__.strip("_"))
def test_a_producer_that_was_replaced_is_fenced(
    java: JavaClients, cluster: Cluster, late: Callable[[JavaProducer, str], None]
) -> None:
    topic = cluster.topic()
    old = begun(java, topic)
    old.send(topic, "of the old")
    new = begun(java, topic)
    new.send(topic, "of the new")
    with pytest.raises(RuntimeError, match=FENCED):
        late(old, topic)
    new.commit()
    assert all_of(java, topic, 1) == ["of the new"]
    assert all_of(java, topic, 2, committed=False) == ["of the old", "of the new"]
    old.close()


def test_a_producer_that_was_replaced_between_its_transactions_is_fenced(java: JavaClients, cluster: Cluster) -> None:
    topic = cluster.topic()
    old = begun(java, topic)
    old.send(topic, "of the old")
    old.abort()
    new = begun(java, topic)
    new.send(topic, "of the new")
    old.begin()
    with pytest.raises(RuntimeError, match=FENCED):
        old.send(topic, "late")
    new.commit()
    assert all_of(java, topic, 1) == ["of the new"]
    old.close()


def test_a_transaction_past_its_time_is_aborted_and_its_producer_fenced(java: JavaClients, cluster: Cluster) -> None:
    topic = cluster.topic()
    producer = begun(java, topic, transaction_timeout_ms=5_000)
    producer.send(topic, "1")
    reader = java.consumer()
    wait_until(lambda: reader.end(topic) == 2, WAIT_S)
    with pytest.raises(RuntimeError, match=FENCED):
        producer.send(topic, "2")
    assert all_of(java, topic, 1, committed=False) == ["1"]
    producer.close()
    again = begun(java, topic)
    again.send(topic, "3")
    again.commit()
    assert all_of(java, topic, 1) == ["3"]


def test_a_producer_is_initialised_once(java: JavaClients, cluster: Cluster) -> None:
    producer = java.producer(cluster.name())
    producer.init()
    with pytest.raises(RuntimeError, match="IllegalStateException"):
        producer.init()


# ---- agents that do not answer


def test_calls_time_out_while_the_agents_are_frozen_and_may_be_made_again(java: JavaClients, cluster: Cluster) -> None:
    topic = cluster.topic()
    settings = {"max_block_ms": 5_000}
    ready = java.producer(f"{topic}-ready", **settings)
    calls: list[tuple[JavaProducer, Callable[[], None]]] = [(ready, ready.init)]
    for name in ("offsets", "commit", "abort"):
        producer = begun(java, f"{topic}-{name}", **settings)
        producer.send(topic, name)
        act = {"offsets": lambda made=producer: made.offsets(topic, 5, group=topic), "abort": producer.abort}
        calls.append((producer, act.get(name, producer.commit)))
    for agent in cluster.processes.agents:
        agent.freeze()
    try:
        for _, call in calls:
            with pytest.raises(RuntimeError, match=r"\.TimeoutException"):
                call()
    finally:
        for agent in cluster.processes.agents:
            agent.thaw()
    for _, call in calls:
        _again(call)
    ready.begin()
    ready.send(topic, "ready")
    ready.commit()
    calls[1][0].commit()
    assert sorted(all_of(java, topic, 3)) == ["commit", "offsets", "ready"]
    assert java.consumer(group_id=topic).committed(topic) == (5, "")


def _again(call: Callable[[], None]) -> None:
    """Until the agents, which have just thawed, are quick enough for it."""
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            return call()
        except RuntimeError as error:
            if ".TimeoutException" not in str(error) or time.monotonic() > deadline:
                raise


def test_a_record_that_could_not_be_sent_is_aborted_and_the_producer_goes_on_in_a_newer_epoch(
    java: JavaClients, cluster: Cluster
) -> None:
    topic = cluster.topic()
    producer = begun(java, topic, delivery_timeout_ms=10_000, request_timeout_ms=5_000)
    producer.send(topic, "1")
    producer.commit()
    producer.begin()
    producer.send(topic, "2")
    [(_, before)] = java.epochs(topic)
    for agent in cluster.processes.agents:
        agent.kill()
    with pytest.raises(RuntimeError, match=r"\.TimeoutException"):
        producer.send(topic, "3")
    cluster.start()
    producer.abort()
    producer.begin()
    producer.send(topic, "4")
    producer.commit()
    assert all_of(java, topic, 2) == ["1", "4"]
    [(_, after)] = java.epochs(topic)
    assert after > before
