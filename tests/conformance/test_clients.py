"""Clients beyond the scenarios: new records at the end of a log, and transactions."""

from __future__ import annotations

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import KafkaError, KafkaException, Producer
from kafka import KafkaProducer

from tests.conformance.clients import CLIENTS
from tests.conformance.cluster import Cluster
from tests.conformance.contract import TIMEOUT_S, Client, Reading
from tests.conformance.scenarios import live, numbered


@pytest.mark.parametrize(
    "client", [client for client in CLIENTS if client.always_there], ids=lambda client: client.name
)
def test_a_consumer_at_the_end_gets_what_comes(cluster: Cluster, client: Client) -> None:
    topic = cluster.topic()
    cluster.write(topic, numbered(10))
    with live(client, cluster, Reading(topic=topic, start=10)) as consumer:
        cluster.write(topic, numbered(1))
        consumer.await_items(1)
        cluster.write(topic, numbered(2))  # by now it is at the end, and waits
        assert [item.offset for item in consumer.await_items(3)] == [10, 11, 12]


async def test_transactional_producers_of_python_commit_and_abort(cluster: Cluster) -> None:
    topic = cluster.topic()
    of_aiokafka = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap, transactional_id="of aiokafka")
    await of_aiokafka.start()
    try:
        async with of_aiokafka.transaction():
            await of_aiokafka.send_and_wait(topic, b"committed")
        await of_aiokafka.begin_transaction()
        await of_aiokafka.send_and_wait(topic, b"aborted")
        await of_aiokafka.abort_transaction()
    finally:
        await of_aiokafka.stop()
    of_kafka_python = KafkaProducer(bootstrap_servers=cluster.bootstrap, transactional_id="of kafka-python")
    try:
        of_kafka_python.init_transactions()
        for end in (of_kafka_python.commit_transaction, of_kafka_python.abort_transaction):
            of_kafka_python.begin_transaction()
            of_kafka_python.send(topic, b"value").get(TIMEOUT_S)
            end()
    finally:
        of_kafka_python.close()


def test_a_new_producer_of_an_id_fences_the_one_before_in_librdkafka(cluster: Cluster) -> None:
    topic = cluster.topic()
    settings = {"bootstrap.servers": cluster.bootstrap, "transactional.id": "of librdkafka"}
    old = Producer(settings)
    old.init_transactions(TIMEOUT_S)
    for end in (old.commit_transaction, old.abort_transaction):
        old.begin_transaction()
        old.produce(topic, b"value")
        end(TIMEOUT_S)
    new = Producer(settings)
    new.init_transactions(TIMEOUT_S)

    old.begin_transaction()
    old.produce(topic, b"late")
    with pytest.raises(KafkaException) as refused:
        old.commit_transaction(TIMEOUT_S)

    assert refused.value.args[0].code() == KafkaError._FENCED
    new.begin_transaction()
    new.produce(topic, b"value")
    new.commit_transaction(TIMEOUT_S)
    new.begin_transaction()
    new.commit_transaction(TIMEOUT_S)  # an empty one
