"""S3 Express directory buckets: their requests stay with aioboto3, and their listings are put in order here."""

from __future__ import annotations

from datetime import UTC, datetime
from urllib.parse import parse_qs, urlsplit

import pytest

from runtime.clock import SystemClock
from storage.objects import ObjectNotFoundError
from storage.s3.store import S3Store
from storage.urls import open_store
from tests.unit.storage.test_s3 import http, scripted_server

pytestmark = pytest.mark.usefixtures("aws_environment")
BUCKET = "quick--use1-az4--x-s3"
KEYS = ("p/l0/bb/2", "p/l0/aa/1", "p/l0/ab/3", "p/l0/aa/0")


class DirectoryBucket:
    """Answers as a directory bucket does: a session first, listings in no order."""

    def __init__(self) -> None:
        self.heads: list[str] = []

    def answer(self, head: bytes, _: bytes) -> bytes:
        said = head.decode()
        self.heads.append(said)
        query = urlsplit(said.split(" ")[1]).query
        if "session" in parse_qs(query, keep_blank_values=True):
            until = SystemClock().wall_ms() // 1000 + 300
            expires = f"<Expiration>{_iso(until)}</Expiration>"
            keys = "<AccessKeyId>a</AccessKeyId><SecretAccessKey>s</SecretAccessKey>"
            keys += "<SessionToken>of-session</SessionToken>"
            body = f"<CreateSessionResult><Credentials>{keys}{expires}</Credentials></CreateSessionResult>"
            return http(200, body=body)
        if "list-type" in query:
            prefix = parse_qs(query)["prefix"][0]
            found = "".join(
                f"<Contents><Key>{key}</Key><Size>1</Size></Contents>" for key in KEYS if key.startswith(prefix)
            )
            return http(200, body=f"<ListBucketResult>{found}</ListBucketResult>")
        return http(404, code="NoSuchKey")

    @property
    def listed(self) -> list[dict[str, list[str]]]:
        queries = [urlsplit(head.split(" ")[1]).query for head in self.heads]
        return [parse_qs(query) for query in queries if "list-type" in query]


def _iso(at_s: int) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


async def opened(url: str) -> S3Store:
    store = open_store(url.replace("bucket", BUCKET))
    assert isinstance(store, S3Store)
    await store.open()
    return store


async def test_a_listing_comes_in_key_order_and_asks_for_whole_folders_from_their_start() -> None:
    bucket = DirectoryBucket()
    async with scripted_server(bucket.answer) as url:
        store = await opened(url)
        try:
            every = ["l0/aa/0", "l0/aa/1", "l0/ab/3", "l0/bb/2"]
            for prefix, after, expected in (
                ("", "", every),
                ("l0/", "", every),
                ("l0/", "l0/aa/1", every[2:]),
                ("l0/a", "", every[:3]),
                ("l0/aa/1", "", ["l0/aa/1"]),
            ):
                assert [stat.key async for stat in store.list(prefix, start_after=after)] == expected
        finally:
            await store.close()
    assert all("start-after" not in query and query["prefix"][0].endswith("/") for query in bucket.listed)


@pytest.mark.parametrize("client", ["aioboto3", "obstore"])
async def test_every_get_is_signed_by_the_client_with_the_keys_of_its_session(client: str) -> None:
    bucket = DirectoryBucket()
    async with scripted_server(bucket.answer) as url:
        store = await opened(f"{url}&client={client}")
        try:
            for _ in range(3):
                with pytest.raises(ObjectNotFoundError):
                    await store.get("l0/aa/9")
        finally:
            await store.close()
    gets = [head.lower() for head in bucket.heads if "l0/aa/9" in head]
    assert len(gets) == 3 and all("x-amz-s3session-token: of-session" in head for head in gets)
