"""Clients beyond the scenarios: new records at the end of a log, and refusals."""

from __future__ import annotations

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError as AiokafkaError
from confluent_kafka import KafkaError, KafkaException, Producer
from kafka import KafkaProducer
from kafka.errors import KafkaError as KafkaPythonError

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


async def test_a_transactional_producer_is_refused_at_once_and_its_error_points_to_no_acl(cluster: Cluster) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap, transactional_id="tx")
    try:
        with pytest.raises(AiokafkaError) as of_aiokafka:
            await producer.start()
    finally:
        await producer.stop()  # its connection stays open although it did not start
    kafka_python = KafkaProducer(bootstrap_servers=cluster.bootstrap, transactional_id="tx")
    with pytest.raises(KafkaPythonError) as of_kafka_python:
        kafka_python.init_transactions()
    kafka_python.close(timeout=0)
    for refused in (of_aiokafka, of_kafka_python):
        assert "UnsupportedVersion" in f"{refused.type.__name__}: {refused.value}"
        assert "uthoriz" not in f"{refused.type.__name__}: {refused.value}"


def test_librdkafka_refuses_a_transactional_producer_at_once_and_says_why(cluster: Cluster) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": "tx"})
    with pytest.raises(KafkaException) as refused:
        producer.init_transactions(TIMEOUT_S)
    assert refused.value.args[0].code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert "transactions are not supported yet" in refused.value.args[0].str()
