"""Kafka and an agent of ours that ask their clients who they are, with the same users."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from bench.servers.kafka import find_jars
from metadata.security.contract import UserChange
from metadata.urls import open_metadata
from security.scram import SALT_BYTES, Mechanism, credential_of
from tests.conformance.security.beside.kafka import SecuredKafka
from tests.conformance.security.beside.sides import ADMIN, PASSWORDS, Side
from tests.fixtures.faults import Postgres, Processes, in_thread
from tests.fixtures.s3 import free_port


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Side]:
    jars = find_jars()
    if jars is None or not any(jars.folder.glob("kafka-server-*.jar")):
        pytest.skip("Kafka's jars (KAFKA_JARS or KAFKA_HOME) and a JVM are not at hand")
    broker = SecuredKafka(jars, tmp_path_factory.mktemp("kafka"), PASSWORDS, ADMIN)
    broker.start()
    try:
        yield Side("Kafka", broker.address("SASL"), broker.address("ANONYMOUS"))
    finally:
        broker.stop()


@pytest.fixture(scope="module")
def ours(kafka: Side, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Side]:
    """After Kafka, so that nothing starts where that is not at hand."""
    folder = tmp_path_factory.mktemp("siltstone")
    postgres = Postgres(folder / "postgres")
    processes = Processes(postgres, folder)
    try:
        _store_users(postgres.url)
        sasl = f"127.0.0.1:{free_port()}"
        settings: dict[str, object] = {
            "acl.mode": "on",
            "super.users": f"User:{ADMIN}",
            "listener.sasl.address": sasl,
            "listener.sasl.protocol": "SASL_PLAINTEXT",
            "listener.sasl.sasl.mechanisms": "PLAIN",
            "produce_linger_ms": 2,
        }
        agent = processes.add(**settings)
        agent.start()
        yield Side("Siltstone", sasl, agent.address)
    finally:
        processes.stop()
        postgres.stop()


def _store_users(metadata_url: str) -> None:
    changes = [
        UserChange(
            name=name,
            mechanism=Mechanism.SCRAM_SHA_256,
            credential=credential_of(Mechanism.SCRAM_SHA_256, password, salt=os.urandom(SALT_BYTES)),
        )
        for name, password in PASSWORDS.items()
    ]

    async def store() -> None:
        metadata = open_metadata(metadata_url)
        await metadata.open()
        try:
            await metadata.security.alter_users(changes)
        finally:
            await metadata.close()

    in_thread(store())
