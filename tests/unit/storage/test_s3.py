"""Cases that only S3 has: the requests on the wire, and the meaning of an answer or of a lost one."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress

import pytest

from runtime.clock import SystemClock
from runtime.errors import BugError
from runtime.ids import SystemIds
from storage.objects import (
    ChecksumMismatchError,
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectStoreError,
    PutInDoubtError,
    StoreFullError,
    StoreMisconfiguredError,
    StoreUnavailableError,
)
from storage.s3.store import S3Store, decode_crc32c, encode_crc32c
from storage.urls import open_store
from storage.wrappers.retrying import Retrying
from tests.fixtures.s3 import BucketUrl, free_port
from wire.crc import crc32c

BODY = b"the body"
CRC = crc32c(BODY)
pytestmark = pytest.mark.usefixtures("aws_environment")

Answer = Callable[[bytes, bytes], bytes | None]
Opened = Callable[[str], AbstractAsyncContextManager[S3Store]]


@pytest.fixture(params=["client", "direct", "obstore"])
def opened(request: pytest.FixtureRequest) -> Opened:
    """Opens a store whose next request goes by the client, or directly (a GET: by obstore)."""
    ways: dict[str, Opened] = {
        "client": by_client,
        "direct": directly,
        "obstore": lambda url: directly(f"{url}&client=obstore"),
    }
    return ways[request.param]


@asynccontextmanager
async def directly(url: str) -> AsyncIterator[S3Store]:
    async with by_client(url) as store:
        # The client learns from its request even if that one fails.
        with suppress(ObjectStoreError):
            await store.get("first")
        yield store


@asynccontextmanager
async def by_client(url: str) -> AsyncIterator[S3Store]:
    store = open_store(url)
    assert isinstance(store, S3Store)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def scripted_server(answer: Answer) -> AsyncIterator[str]:
    """The URL of a server that reads a whole request and sends the result of `answer(head, body)`; None: hang up."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            lines = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line)
            body = await reader.readexactly(int(lines.get(b"content-length", b"0")))
            said = answer(head, body)
            if said is not None:
                writer.write(said)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"s3://bucket/p?endpoint=http://127.0.0.1:{port}&region=us-east-1"
    finally:
        server.close()
        await server.wait_closed()


def http(status: int, code: str = "", headers: str = "", body: str = "") -> bytes:
    body = f"<Error><Code>{code}</Code><Message>m</Message></Error>" if code else body
    return f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\nConnection: close\r\n{headers}\r\n{body}".encode()


async def test_a_put_carries_its_condition_and_checksum_and_neither_expects_nor_hashes(opened: Opened) -> None:
    requests: list[tuple[bytes, bytes]] = []

    def answer(head: bytes, body: bytes) -> bytes:
        requests.append((head.lower(), body))
        return http(200, headers='ETag: "x"\r\n')

    async with scripted_server(answer) as url, opened(url) as store:
        await store.put_if_absent("l0/k", BODY, crc32c=CRC)
    head, body = requests[-1]
    assert (b"amz-sdk-invocation-id" in head) == (opened is by_client)
    assert head.startswith(b"put /bucket/p/l0/k ")
    assert b"if-none-match: *" in head
    assert b"x-amz-checksum-crc32c: " + base64.b64encode(CRC.to_bytes(4, "big")).lower() in head
    assert b"x-amz-content-sha256: unsigned-payload" in head
    assert b"expect:" not in head
    assert b"x-amz-trailer" not in head
    assert body == BODY


async def test_an_upload_in_parts_is_completed_under_the_crc_of_the_whole_object() -> None:
    """The store compares it with the parts that it has joined. Without it, a lost or doubled part would be stored."""
    requests: list[tuple[bytes, bytes]] = []
    named = "<Bucket>bucket</Bucket><Key>p/l1/k</Key>"

    def answer(head: bytes, body: bytes) -> bytes:
        requests.append((head.lower(), body))
        if head.startswith(b"POST") and b"uploads" in head.split(b"\r\n")[0]:
            body_xml = f"<InitiateMultipartUploadResult>{named}<UploadId>u</UploadId></InitiateMultipartUploadResult>"
            return http(200, body=body_xml)
        if head.startswith(b"POST"):
            return http(200, body=f"<CompleteMultipartUploadResult>{named}</CompleteMultipartUploadResult>")
        return http(200, headers='ETag: "x"\r\n')

    def header(crc32c: int) -> bytes:
        return b"x-amz-checksum-crc32c: " + base64.b64encode(crc32c.to_bytes(4, "big")).lower() + b"\r\n"

    parts = [b"the first ", b"the second ", b"the end"]
    async with scripted_server(answer) as url, by_client(url) as store:
        upload = await store.start_multipart("l1/k")
        for part in parts:
            await upload.write(part)
        await upload.complete()
    begun, *sent, (completed, _) = requests
    assert b"x-amz-checksum-algorithm: crc32c\r\n" in begun[0] and b"x-amz-checksum-type: full_object\r\n" in begun[0]
    assert [header(crc32c(part)) in head for part, (head, _) in zip(parts, sent, strict=True)] == [True] * 3
    assert header(crc32c(b"".join(parts))) in completed
    assert b"x-amz-checksum-type: full_object\r\n" in completed and b"if-none-match: *\r\n" in completed


ANSWERS_TO_PUT = [
    (412, "PreconditionFailed", ObjectExistsError),
    (409, "ConditionalRequestConflict", StoreUnavailableError),
    (503, "SlowDown", StoreUnavailableError),
    (429, "TooManyRequests", StoreUnavailableError),
    (503, "ServiceUnavailable", PutInDoubtError),
    (500, "InternalError", PutInDoubtError),
    (502, "", PutInDoubtError),
    (504, "", PutInDoubtError),
    (400, "RequestTimeout", PutInDoubtError),
    (400, "BadDigest", ChecksumMismatchError),
    (507, "XMinioStorageFull", StoreFullError),
    (403, "QuotaExceeded", StoreFullError),
    (403, "AccessDenied", StoreMisconfiguredError),
    (403, "RequestTimeTooSkewed", StoreMisconfiguredError),
    (404, "NoSuchBucket", StoreMisconfiguredError),
    (301, "PermanentRedirect", StoreMisconfiguredError),
    (501, "NotImplemented", StoreMisconfiguredError),
    (400, "InvalidArgument", ObjectStoreError),
]
ANSWERS_TO_GET = [
    (404, "NoSuchKey", ObjectNotFoundError),
    (404, "NoSuchBucket", StoreMisconfiguredError),
    (500, "InternalError", StoreUnavailableError),
    (503, "SlowDown", StoreUnavailableError),
    (502, "", StoreUnavailableError),
    (403, "AccessDenied", StoreMisconfiguredError),
]


def answer_by_key(head: bytes, body: bytes) -> bytes:
    """The key `500-InternalError` is answered with that status and code."""
    status, _, code = head.split(b" ")[1].split(b"?")[0].rsplit(b"/", 1)[1].decode().partition("-")
    # On a redirect botocore asks for the bucket's region by HEAD, whose answer has no body.
    return http(int(status), code) if status.isdigit() and not head.startswith(b"HEAD") else http(404)


async def test_each_answer_to_a_put_has_its_meaning(opened: Opened) -> None:
    async with scripted_server(answer_by_key) as url, opened(url) as store:
        for status, code, expected in ANSWERS_TO_PUT:
            with pytest.raises(ObjectStoreError) as caught:
                await store.put_if_absent(f"{status}-{code}", BODY, crc32c=CRC)
            assert type(caught.value) is expected, (status, code)
            if isinstance(caught.value, StoreMisconfiguredError):
                assert "'bucket' at http://127.0.0.1" in caught.value.message
                assert caught.value.remedy


async def test_each_answer_to_a_get_has_its_meaning(opened: Opened) -> None:
    async with scripted_server(answer_by_key) as url, opened(url) as store:
        for status, code, expected in ANSWERS_TO_GET:
            for call in (store.get(f"{status}-{code}"), store.get_range(f"{status}-{code}", 0, 5)):
                with pytest.raises(ObjectStoreError) as caught:
                    await call
                assert type(caught.value) is expected, (status, code)


async def test_an_answer_without_a_code_is_told_by_its_status_alone() -> None:
    async with scripted_server(answer_by_key) as url, by_client(url) as store:
        with pytest.raises(StoreUnavailableError, match=r"^502 to get '502-' in bucket"):
            await store.get("502-")


async def test_a_connection_that_breaks_after_the_body_leaves_a_put_in_doubt_and_a_get_unavailable(
    opened: Opened,
) -> None:
    async with scripted_server(lambda head, body: None) as url, opened(url) as store:
        with pytest.raises(PutInDoubtError, match="'bucket'"):
            await store.put_if_absent("k", BODY, crc32c=CRC)
        with pytest.raises(StoreUnavailableError):
            await store.get("k")


async def test_a_connection_that_breaks_in_the_middle_of_a_large_body_leaves_a_put_in_doubt(opened: Opened) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.abort()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    url = f"s3://bucket?endpoint=http://127.0.0.1:{server.sockets[0].getsockname()[1]}&region=us-east-1"
    async with opened(url) as store:
        with pytest.raises(PutInDoubtError):
            await store.put_if_absent("k", bytes(16 * 2**20), crc32c=crc32c(bytes(16 * 2**20)))
    server.close()
    await server.wait_closed()


async def test_a_server_that_never_answers_is_given_up_and_leaves_a_put_in_doubt(
    opened: Opened,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("storage.s3.store.REQUEST_TIMEOUT_S", 0.2)
    done = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await done.wait()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    url = f"s3://bucket?endpoint=http://127.0.0.1:{server.sockets[0].getsockname()[1]}&region=us-east-1"
    async with opened(url) as store:
        with pytest.raises(PutInDoubtError):
            await store.put_if_absent("k", BODY, crc32c=CRC)
        with pytest.raises(StoreUnavailableError):
            await store.head("k")
    done.set()
    server.close()
    await server.wait_closed()


async def test_a_refused_connection_proves_that_nothing_was_written(opened: Opened) -> None:
    async with opened(f"s3://bucket?endpoint=http://127.0.0.1:{free_port()}&region=us-east-1") as store:
        with pytest.raises(StoreUnavailableError, match="cannot reach"):
            await store.put_if_absent("k", BODY, crc32c=CRC)


async def test_an_answer_that_breaks_off_is_unavailable_not_short(opened: Opened) -> None:
    cut = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this"
    async with scripted_server(lambda head, body: cut) as url, opened(url) as store:
        with pytest.raises(StoreUnavailableError):
            await store.get("k")


async def test_a_server_that_ignores_ranges_still_gives_the_range(opened: Opened) -> None:
    whole = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\nConnection: close\r\n\r\n0123456789"
    async with scripted_server(lambda head, body: whole) as url, opened(url) as store:
        assert await store.get_range("k", 3, 4) == b"3456"


async def test_a_delete_that_the_store_does_not_confirm_counts_as_failed(opened: Opened) -> None:
    listed = (
        b"<DeleteResult><Deleted><Key>p/a</Key></Deleted>"
        b"<Error><Key>p/b</Key><Code>AccessDenied</Code><Message>no</Message></Error></DeleteResult>"
    )
    said = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(listed), listed)
    async with scripted_server(lambda head, body: said) as url, opened(url) as store:
        deleted = await store.delete_many(["a", "b", "c"])
    assert list(deleted.keys) == ["a"]
    assert deleted.failed["b"] == "AccessDenied no"
    assert set(deleted.failed) == {"b", "c"}


async def test_without_credentials_the_remedy_says_so(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    async with opened("s3://bucket?endpoint=http://127.0.0.1:1&region=us-east-1") as store:
        with pytest.raises(StoreMisconfiguredError, match="credentials"):
            await store.get("k")


async def test_a_missing_profile_is_a_misconfiguration(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(StoreMisconfiguredError, match="nobody"):
        async with opened("s3://bucket?endpoint=http://127.0.0.1:1"):
            pass


async def test_a_store_that_is_not_open_says_so() -> None:
    with pytest.raises(BugError, match="open"):
        await S3Store(bucket="bucket").get("k")


async def test_a_missing_bucket_is_named_with_its_endpoint(opened: Opened, s3_url: BucketUrl) -> None:
    url = s3_url()
    missing = url.replace("s3://b-", "s3://missing-")
    async with opened(missing) as store:
        calls: list[Awaitable[object]] = [store.get("k"), store.put_if_absent("k", BODY, crc32c=CRC)]
        for call in [*calls, anext(store.list())]:
            with pytest.raises(StoreMisconfiguredError, match=r"'missing-.*http://127.0.0.1"):
                await call


async def test_prefixes_of_one_bucket_do_not_see_each_other(opened: Opened, s3_url: BucketUrl) -> None:
    url = s3_url(prefix="team")
    async with (
        opened(url) as team,
        opened(url.replace("/team?", "/team-two?")) as other,
        opened(url.replace("/team?", "?")) as bucket,
    ):
        await team.put_if_absent("k", BODY, crc32c=CRC)
        await other.put_if_absent("k2", BODY, crc32c=CRC)
        assert [stat.key async for stat in team.list()] == ["k"]
        assert [stat.key async for stat in bucket.list()] == ["team-two/k2", "team/k"]
        upload = await other.start_multipart("m")
        assert await team.abort_multiparts(older_than_ms=2**42) == 0
        await upload.abort()


async def test_wrong_credentials_are_refused_by_a_strict_server(
    opened: Opened, strict_s3_url: BucketUrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = strict_s3_url()
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    async with opened(url) as store:
        with pytest.raises(StoreMisconfiguredError, match="403"):
            await store.put_if_absent("k", BODY, crc32c=CRC)


async def test_large_puts_of_one_key_end_with_one_winner_and_clear_refusals_on_a_strict_server(
    opened: Opened,
    strict_s3_url: BucketUrl,
) -> None:
    # Losers of this size are often reset instead of answered. A HEAD then gives a clear answer.
    bodies = [bytes([number]) * (8 * 2**20) for number in range(6)]
    async with opened(strict_s3_url()) as inner:
        store = Retrying(inner, SystemClock(), SystemIds())
        answers = await asyncio.gather(
            *(store.put_if_absent("k", body, crc32c=crc32c(body)) for body in bodies), return_exceptions=True
        )
        [winner] = [number for number, answer in enumerate(answers) if answer is None]
        assert {type(answer) for answer in answers if answer is not None} == {ObjectExistsError}
        assert await store.get("k") == bodies[winner]


async def test_a_strict_server_keeps_our_checksum(opened: Opened, strict_s3_url: BucketUrl) -> None:
    async with opened(strict_s3_url()) as store:
        await store.put_if_absent("k", BODY, crc32c=CRC)
        assert (await store.head("k")).crc32c == CRC


def test_a_checksum_header_is_four_bytes_and_a_composite_one_is_none() -> None:
    assert decode_crc32c(encode_crc32c(0x01020304)) == 0x01020304
    assert encode_crc32c(0) == "AAAAAA=="
    for header in ("", "AAAAAA==-3", "AAAA", "!!!!", "AAAAAAAA"):
        assert decode_crc32c(header) is None
