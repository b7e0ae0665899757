"""GETs by obstore: what it sends, and whose error the caller sees. `test_s3.py` runs its cases over this way too."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime

import pytest

from runtime.clock import ManualClock, SystemClock
from storage.objects import (
    ObjectNotFoundError,
    ObjectStoreError,
    StoreMisconfiguredError,
    StoreUnavailableError,
)
from storage.s3.direct import Direct
from storage.s3.obstore_gets import ObstoreGets, credential_provider
from storage.s3.session import OneTrySession
from storage.urls import open_store
from tests.fixtures.s3 import free_port
from tests.unit.storage.test_s3 import http, scripted_server
from tests.unit.storage.test_s3_direct import Renewed, place

pytestmark = pytest.mark.usefixtures("aws_environment")


@asynccontextmanager
async def reading(url: str) -> AsyncIterator[ObstoreGets]:
    """A store that has learned where to ask."""
    store = open_store(f"{url}&client=obstore")
    assert isinstance(store, ObstoreGets)
    await store.open()
    with suppress(ObjectStoreError):
        await store.get("first")
    yield store
    await store.close()


def from_client(head: bytes) -> bool:
    return b"amz-sdk-invocation-id" in head.lower()


def by_direct(head: bytes) -> bool:
    return not from_client(head) and b"aiobotocore" in head.lower()


async def test_a_range_is_asked_for_once_signed_and_by_obstore() -> None:
    heads: list[bytes] = []

    def answer(head: bytes, body: bytes) -> bytes:
        heads.append(head)
        return http(404) if from_client(head) else http(206, headers="Content-Range: bytes 3-6/10\r\n", body="3456")

    async with scripted_server(answer) as url, reading(url) as store:
        heads.clear()
        assert await store.get_range("a b/é", 3, 4) == b"3456"
    [head] = heads
    assert not from_client(head)
    assert not by_direct(head)
    assert head.startswith(b"GET /bucket/p/a%20b/%C3%A9 ")
    assert b"range: bytes=3-6" in head.lower()
    assert b"/us-east-1/s3/aws4_request" in head


async def test_errors_that_say_try_again_are_told_at_once_and_others_come_from_the_client() -> None:
    heads: list[bytes] = []
    said = http(200)

    def answer(head: bytes, body: bytes) -> bytes:
        heads.append(head)
        return said

    async with scripted_server(answer) as url, reading(url) as store:
        for status, code, expected, requests in (
            (503, "SlowDown", StoreUnavailableError, 1),
            (500, "InternalError", StoreUnavailableError, 1),
            (429, "TooManyRequests", StoreUnavailableError, 1),
            (404, "NoSuchKey", ObjectNotFoundError, 2),
            (404, "NoSuchBucket", StoreMisconfiguredError, 2),
            (403, "RequestTimeTooSkewed", StoreMisconfiguredError, 2),
        ):
            heads.clear()
            said = http(status, code)
            with pytest.raises(ObjectStoreError) as caught:
                await store.get_range("k", 0, 5)
            assert type(caught.value) is expected, (status, code)
            assert len(heads) == requests, (status, code)
        heads.clear()
        said = http(416, "InvalidRange")
        assert await store.get_range("k", 10, 5) == b""
        assert len(heads) == 1


async def test_a_cut_answer_is_not_asked_for_again() -> None:
    heads: list[bytes] = []

    def answer(head: bytes, body: bytes) -> bytes:
        heads.append(head)
        return b"HTTP/1.1 206 X\r\nContent-Length: 10\r\nContent-Range: bytes 0-9/10\r\n\r\nonly"

    async with scripted_server(answer) as url, reading(url) as store:
        heads.clear()
        with pytest.raises(StoreUnavailableError):
            await store.get_range("k", 0, 10)
    assert len(heads) == 1


async def test_a_refused_connection_has_the_clients_error() -> None:
    async with reading(f"s3://bucket?endpoint=http://127.0.0.1:{free_port()}&region=us-east-1") as store:
        with pytest.raises(StoreUnavailableError, match="cannot reach"):
            await store.get("k")


async def test_another_range_than_the_one_asked_for_is_never_returned() -> None:
    wrong = http(206, headers="Content-Range: bytes 10-14/200\r\n", body="01234")
    right = http(206, headers="Content-Range: bytes 0-4/200\r\n", body="abcde")
    async with (
        scripted_server(lambda head, body: right if by_direct(head) or from_client(head) else wrong) as url,
        reading(url) as store,
    ):
        assert await store.get_range("k", 0, 5) == b"abcde"


async def test_credentials_are_asked_for_again_after_a_minute() -> None:
    credentials = Renewed("FIRST", "SK")
    provide = credential_provider(Direct(OneTrySession(timeout=(5, 5)), credentials, ManualClock()))
    first = await provide()
    assert first["access_key_id"] == "FIRST"
    assert first["expires_at"] is not None
    # obstore asks 300 s before the end
    left_s = (first["expires_at"] - datetime.fromtimestamp(SystemClock().wall_ms() / 1000, UTC)).total_seconds()
    assert 330 < left_s <= 360
    credentials.frozen = Renewed("SECOND", "SK", "token").frozen
    second = await provide()
    assert (second["access_key_id"], second.get("token")) == ("SECOND", "token")


async def test_a_bucket_in_the_host_is_not_in_the_path() -> None:
    heads: list[bytes] = []

    def answer(head: bytes, body: bytes) -> bytes:
        heads.append(head)
        return http(206, headers="Content-Range: bytes 0-0/1\r\n", body="x")

    async with scripted_server(answer) as url:
        origin = url.split("endpoint=")[1].split("&")[0]
        store = ObstoreGets(bucket="bucket")
        direct = Direct(OneTrySession(timeout=(5, 5)), Renewed("AK", "SK"), ManualClock())
        for path in ("/", "/bucket/"):
            reader = store.make_reader(direct, place(origin, path))
            assert bytes(await reader.get_range_async("k", start=0, length=1)) == b"x"
    assert [head.split(b" ")[1] for head in heads] == [b"/k", b"/bucket/k"]


def test_without_the_extra_the_url_is_refused_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    monkeypatch.delitem(sys.modules, "storage.s3.obstore_gets", raising=False)
    with pytest.raises(StoreMisconfiguredError, match="not installed") as caught:
        open_store("s3://logs?client=obstore")
    assert "fast-s3" in caught.value.remedy
