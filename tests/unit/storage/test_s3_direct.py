"""Where direct requests go, and when they are left to the client. The client is real; nothing listens to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aioboto3
import pytest
from aiobotocore.config import AioConfig
from botocore.awsrequest import AWSPreparedRequest
from botocore.credentials import ReadOnlyCredentials
from botocore.exceptions import ClientError

from runtime.clock import ManualClock
from storage.s3.direct import BufferPayload, Direct, Place, asking
from storage.s3.session import OneTrySession
from storage.urls import open_store
from tests.unit.storage.test_s3 import BODY, CRC, http, scripted_server

pytestmark = pytest.mark.usefixtures("aws_environment")


class Renewed:
    """Credentials that can be replaced, as those of a role are."""

    def __init__(self, access_key: str, secret_key: str, token: str | None = None) -> None:
        self.frozen = ReadOnlyCredentials(access_key, secret_key, token)

    async def get_frozen_credentials(self) -> ReadOnlyCredentials:
        return self.frozen


class NotFound:
    """The answer to every request of the client, which is never sent."""

    status_code = 404
    headers: dict[str, str] = {}  # noqa: RUF012

    @property
    async def content(self) -> bytes:
        return b""


@asynccontextmanager
async def taught(
    credentials: Renewed,
    *,
    key: str = "p/k",
    bucket: str = "bucket",
    region: str = "eu-central-1",
    endpoint: str | None = None,
    client_token: str | None = None,
    **s3: object,
) -> AsyncIterator[Direct]:
    http_session = OneTrySession(timeout=(5, 5))
    direct = Direct(http_session, credentials, ManualClock())
    config = AioConfig(s3={"payload_signing_enabled": False, **s3}, response_checksum_validation="when_required")
    untyped: Any = aioboto3.Session()
    async with untyped.client(
        "s3",
        region_name=region,
        endpoint_url=endpoint,
        config=config,
        aws_access_key_id=credentials.frozen.access_key,
        aws_secret_access_key=credentials.frozen.secret_key,
        aws_session_token=client_token or credentials.frozen.token,
    ) as client:

        async def instead(request: AWSPreparedRequest, **_: object) -> NotFound:
            await direct.learn(request)
            return NotFound()

        client.meta.events.register("before-send.s3.GetObject", instead)
        asking.set(key)
        with pytest.raises(ClientError):
            await client.get_object(Bucket=bucket, Key=key)
        yield direct
    await http_session.close()


def place(origin: str, path: str, region: str = "eu-central-1") -> Place:
    return Place(origin=origin, host=origin.split("//")[1], path=path, region=region, service="s3")


async def test_the_place_of_a_bucket_is_the_clients() -> None:
    virtual = place("https://bucket.s3.eu-central-1.amazonaws.com", "/")
    credentials = Renewed("AK", "SK", "token")
    async with taught(credentials) as direct:
        assert direct.place == virtual
    async with taught(credentials, key="bucket/a b/é+&") as direct:
        assert direct.place == virtual
    async with taught(credentials, addressing_style="path") as direct:
        assert direct.place == place("https://s3.eu-central-1.amazonaws.com", "/bucket/")
    async with taught(credentials, key="bucket/bucket/k", addressing_style="path") as direct:
        assert direct.place == place("https://s3.eu-central-1.amazonaws.com", "/bucket/")
    async with taught(credentials, use_dualstack_endpoint=True) as direct:
        assert direct.place == place("https://bucket.s3.dualstack.eu-central-1.amazonaws.com", "/")
    async with taught(Renewed("AK", "SK"), endpoint="http://[::1]:9000", addressing_style="path") as direct:
        assert direct.place == place("http://[::1]:9000", "/bucket/")


async def test_a_request_that_is_signed_otherwise_stays_with_the_client() -> None:
    async with taught(Renewed("AK", "SK", "token"), client_token="another") as direct:
        assert direct.place is None
        assert await direct.get("p/k") is None
        assert await direct.put_if_absent("p/k", BODY, "AAAAAA==") is None
    async with taught(Renewed("AK", "SK"), payload_signing_enabled=True) as direct:
        assert direct.place is None


async def test_behind_a_proxy_every_request_stays_with_the_client() -> None:
    session = OneTrySession(timeout=(5, 5), proxies={"http": "http://127.0.0.1:1"})
    assert await session.direct_session("http://store.example/") is None
    await session.close()


async def test_renewed_credentials_sign_the_next_request() -> None:
    heads: list[bytes] = []

    def answer(head: bytes, body: bytes) -> bytes:
        heads.append(head)
        return http(200)

    credentials = Renewed("FIRST", "SK")
    async with scripted_server(answer) as url:
        endpoint = url.split("endpoint=")[1].split("&")[0]
        async with taught(credentials, endpoint=endpoint, addressing_style="path") as direct:
            assert await direct.get("p/k") is not None
            credentials.frozen = ReadOnlyCredentials("SECOND", "SK", "token")
            assert await direct.get("p/k") is not None
            credentials.frozen = ReadOnlyCredentials("SECOND", "another", "token")
            assert await direct.get("p/k") is not None
    assert b"Credential=FIRST/" in heads[0]
    assert b"x-amz-security-token" not in heads[0].lower()
    assert b"Credential=SECOND/" in heads[1]
    assert b"x-amz-security-token: token" in heads[1].lower()
    assert heads[1].split(b"Signature=")[1] != heads[2].split(b"Signature=")[1]


async def test_a_bucket_in_another_region_is_followed_by_the_client_and_then_reached_directly() -> None:
    seen: list[tuple[str, str, bool]] = []

    def answer(head: bytes, body: bytes) -> bytes:
        method, region = head.split(b" ")[0].decode(), head.split(b"Credential=")[1].split(b"/")[2].decode()
        seen.append((method, region, b"amz-sdk-invocation-id" in head.lower()))
        if method == "HEAD":
            return http(200, headers="x-amz-bucket-region: eu-west-1\r\n")
        return http(200) if region == home else http(301, "PermanentRedirect")

    home = "us-east-1"
    async with scripted_server(answer) as url:
        store: Any = open_store(url)
        await store.open()
        await store.put_if_absent("one", BODY, crc32c=CRC)
        await store.put_if_absent("two", BODY, crc32c=CRC)
        assert seen == [("PUT", "us-east-1", True), ("PUT", "us-east-1", False)]
        seen.clear()
        home = "eu-west-1"
        await store.put_if_absent("three", BODY, crc32c=CRC)
        await store.put_if_absent("four", BODY, crc32c=CRC)
        await store.close()
    assert seen[0] == ("PUT", "us-east-1", False)
    assert seen[-2:] == [("PUT", "eu-west-1", True), ("PUT", "eu-west-1", False)]


async def test_a_cancelled_request_gives_its_connection_up() -> None:
    asked = asyncio.Event()
    closed = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\npart")
        asked.set()
        await reader.read()
        closed.set()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with taught(Renewed("AK", "SK"), endpoint=endpoint, addressing_style="path") as direct:
        request = asyncio.create_task(direct.get("p/k"))
        await asked.wait()
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        await asyncio.wait_for(closed.wait(), 20)
    server.close()
    await server.wait_closed()


async def test_a_body_is_written_once_and_whole() -> None:
    body = bytes(range(256)) * 10_000

    class Writer:
        def __init__(self) -> None:
            self.parts: list[bytes] = []

        async def write(self, chunk: memoryview) -> None:
            self.parts.append(bytes(chunk))

    for kind in (bytes, bytearray, memoryview):
        payload, writer = BufferPayload(kind(body)), Writer()
        untyped: Any = writer
        await payload.write(untyped)
        assert payload.size == len(body)
        assert b"".join(writer.parts) == body
        assert len(writer.parts) == 3
