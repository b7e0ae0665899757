"""A listener with TLS, and other people's clients: certificates asked for, renewed under load, wrong at the start."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, Producer
from kafka import KafkaConsumer, KafkaProducer

from runtime.settings.listeners import ListenerSettings
from runtime.settings.values import SettingsError
from runtime.tls.files import TlsFileError
from tests.fixtures.agents import RunningAgent, StartAgent
from tests.fixtures.certificates import Certificates, IdentityFiles
from tests.fixtures.waiting import until


def listener(certificates: Certificates, server: IdentityFiles | None = None, **members: Any) -> ListenerSettings:
    files = server or certificates.server
    given: Mapping[str, Any] = {
        "name": "default",
        "address": "127.0.0.1:0",
        "protocol": "SSL",
        "tls_cert_file": str(files.cert),
        "tls_key_file": str(files.key),
        "tls_ca_file": str(certificates.ca),
        "tls_client_auth": "required",
        **members,
    }
    return ListenerSettings(**given)


def principals(running: RunningAgent) -> set[str]:
    server = running.agent._server
    assert server is not None
    return {connection.client.principal for connection in server._connections}


async def test_clients_of_every_kind_write_and_read(start_agent: StartAgent, certificates: Certificates) -> None:
    rules = "RULE:^CN=([^,]+),O=Siltstone$/$1/U,DEFAULT"
    running = await start_agent(
        listen="",
        acl_mode="off",
        listeners=(listener(certificates, tls_principal_mapping_rules=rules),),
        auto_create_topics_enable=True,
    )
    address = running.address

    def librdkafka() -> bytes | None:
        common = {
            "bootstrap.servers": address,
            "security.protocol": "SSL",
            "ssl.ca.location": str(certificates.ca),
            "ssl.certificate.location": str(certificates.client.cert),
            "ssl.key.location": str(certificates.client.key),
        }
        producer = Producer(common)
        producer.produce("librdkafka", b"hello")
        assert producer.flush(60) == 0
        consumer = Consumer({**common, "group.id": "librdkafka", "auto.offset.reset": "earliest"})
        consumer.subscribe(["librdkafka"])
        try:
            for _ in range(60):
                message = consumer.poll(1)
                if message is not None and message.error() is None:
                    return message.value()
            return None
        finally:
            consumer.close()

    def kafka_python() -> bytes | None:
        common: dict[str, Any] = {
            "bootstrap_servers": address,
            "security_protocol": "SSL",
            "ssl_cafile": str(certificates.ca),
            "ssl_certfile": str(certificates.client.cert),
            "ssl_keyfile": str(certificates.client.key),
        }
        producer = KafkaProducer(**common)
        producer.send("kafka-python", b"hello").get(60)
        producer.close()
        consumer = KafkaConsumer(
            "kafka-python", group_id="kafka-python", auto_offset_reset="earliest", consumer_timeout_ms=60_000, **common
        )
        try:
            return next(consumer).value
        finally:
            consumer.close()

    async def aiokafka() -> bytes | None:
        context = certificates.client_context(certificates.client)
        common: dict[str, Any] = {"bootstrap_servers": address, "security_protocol": "SSL", "ssl_context": context}
        async with AIOKafkaProducer(**common) as producer:
            await producer.send_and_wait("aiokafka", b"hello")
        async with AIOKafkaConsumer("aiokafka", auto_offset_reset="earliest", **common) as consumer:
            return (await asyncio.wait_for(consumer.getone(), 60)).value

    assert await asyncio.to_thread(librdkafka) == b"hello"
    assert await asyncio.to_thread(kafka_python) == b"hello"
    assert await aiokafka() == b"hello"


async def test_clients_have_the_principal_that_the_rules_make(
    start_agent: StartAgent, certificates: Certificates
) -> None:
    rules = "RULE:^CN=([^,]+),O=Siltstone$/$1/U"
    running = await start_agent(
        listen="", acl_mode="off", listeners=(listener(certificates, tls_principal_mapping_rules=rules),)
    )
    host, _, port = running.address.rpartition(":")
    context = certificates.client_context(certificates.client)
    _, writer = await asyncio.open_connection(host, int(port), ssl=context, server_hostname="localhost")
    await until(lambda: principals(running) == {"User:ANN"})
    assert running.metric("authentications_total", mechanism="certificate") == 1
    writer.transport.abort()


async def test_a_certificate_is_renewed_under_load_and_no_request_is_lost(
    start_agent: StartAgent, certificates: Certificates, tmp_path: Path
) -> None:
    def write() -> IdentityFiles:
        return certificates.authority.server().write(tmp_path / "server")

    async def serial() -> object:
        host, _, port = running.address.rpartition(":")
        streams = await asyncio.open_connection(host, int(port), ssl=context, server_hostname="localhost")
        try:
            return streams[1].get_extra_info("peercert")["serialNumber"]
        finally:
            streams[1].transport.abort()

    running = await start_agent(
        listen="", acl_mode="off", listeners=(listener(certificates, write()),), auto_create_topics_enable=True
    )
    context = certificates.client_context(certificates.client)
    common: dict[str, Any] = {"bootstrap_servers": running.address, "security_protocol": "SSL", "ssl_context": context}
    serials = {await serial()}
    sent = 0
    async with AIOKafkaProducer(**common) as producer:
        for number in range(5):
            sends = [asyncio.create_task(producer.send_and_wait("t", b"%d" % each)) for each in range(sent, sent + 100)]
            sent += 100
            write()
            running.agent.reload_certificates()
            await until(
                lambda number=number: running.metric("tls_reloads_total", listener="default", outcome="used") > number
            )
            serials.add(await serial())
            await asyncio.gather(*sends)
    assert len(serials) == 6
    async with AIOKafkaConsumer("t", auto_offset_reset="earliest", **common) as consumer:
        found = [(await asyncio.wait_for(consumer.getone(), 60)).value for _ in range(sent)]
    assert found == [b"%d" % each for each in range(sent)]


async def test_whoever_shows_no_good_certificate_gets_nothing(
    start_agent: StartAgent, certificates: Certificates
) -> None:
    running = await start_agent(
        listen="", acl_mode="off", listeners=(listener(certificates, tls_crl_file=str(certificates.crl)),)
    )
    host, _, port = running.address.rpartition(":")
    for identity in (None, certificates.client_of_other, certificates.client_expired, certificates.client_revoked):
        context = certificates.client_context(identity)
        reader, writer = await asyncio.open_connection(host, int(port), ssl=context, server_hostname="localhost")
        async with asyncio.timeout(20):
            # TLS 1.3: the client thinks that it is in until it is told otherwise
            with suppress(ssl.SSLError, ConnectionError):
                assert await reader.read() == b""
        writer.transport.abort()
    assert running.metric("requests_total", api="ApiVersions") == 0
    refused = {"mechanism": "certificate", "reason": "credentials"}
    await until(lambda: running.metric("authentications_refused_total", **refused) == 4)
    assert running.metric("authentications_total", mechanism="certificate") == 0


async def test_a_start_with_bad_files_is_refused_and_frees_the_address(
    start_agent: StartAgent, certificates: Certificates
) -> None:
    for members, server, says in (
        ({}, certificates.server_expired, r"listener\.default\.tls\.cert\.file = .*expired"),
        ({"tls_key_file": str(certificates.server_rsa.key)}, None, r"listener\.default\.tls\.key\.file = .*not belong"),
        ({"tls_cert_file": "/nowhere.pem"}, None, r"listener\.default\.tls\.cert\.file = /nowhere.pem: no such file"),
    ):
        with pytest.raises(TlsFileError, match=says):
            await start_agent(listen="", acl_mode="off", listeners=(listener(certificates, server, **members),))
    with pytest.raises(SettingsError, match=r"listener\.default\.tls\.principal\.mapping\.rules: .* character 6 "):
        bad = listener(certificates, tls_principal_mapping_rules="RULE:(/x/")
        await start_agent(listen="", acl_mode="off", listeners=(bad,))
