"""An object store in an S3 bucket, by aioboto3: AWS or any server that honours `If-None-Match: *`.

One process has one client and one connection pool. One method call is one request (listing and deleting: one per page),
tried once: `storage/wrappers/retrying.py` decides about another try. Every request has a total time limit, because
neither the client nor the socket limits how long a body may take to send. PUTs and GETs of objects bypass most of the
client once it has shown how it makes them (`storage/s3/direct.py`).

A PUT carries our CRC-32C, which the store checks and keeps. The payload is not signed as well, because SHA-256 of 8 MiB
costs more than everything else together, and `Expect: 100-continue`, a round trip per PUT, is dropped. A crash leaves a
whole object or none, or parts of a multipart upload, which `abort_multiparts` removes.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, TypeVar, cast

import aioboto3
from aiobotocore.config import AioConfig
from botocore.exceptions import BotoCoreError

from runtime.clock import SystemClock
from runtime.errors import BugError
from storage.keys import check_key
from storage.objects import (
    BegunUpload,
    Body,
    Deleted,
    ObjectExistsError,
    ObjectStat,
    ObjectStoreError,
    StoreMisconfiguredError,
    check_range,
)
from storage.parts import crc32c_of
from storage.s3.direct import Direct, asking, range_header
from storage.s3.errors import CLIENT_ERRORS, FIRST_SETTING, translate
from storage.s3.session import OneTrySession

if TYPE_CHECKING:
    from types_aiobotocore_s3 import S3Client
    from types_aiobotocore_s3.type_defs import CompletedPartTypeDef, ListObjectsV2OutputTypeDef, ObjectIdentifierTypeDef

T = TypeVar("T")

DELETE_KEYS_MAX = 1000
"""The most keys in one DeleteObjects (S3 API reference)."""
POOL_CONNECTIONS = 64
CONNECT_TIMEOUT_S = 5
READ_TIMEOUT_S = 30
"""The longest silence of the server inside one answer."""
REQUEST_TIMEOUT_S = 60
"""The longest time of one request with its body and its answer."""
DIRECTORY_SUFFIX = "--x-s3"
"""The end of the names of S3 Express directory buckets. Their requests are signed with keys of a session, which
aioboto3 makes and renews; they list in no order and know no start-after."""
DEFAULT_REGION = "us-east-1"
"""The region that S3-compatible servers expect by default."""


class S3Store:
    """Objects under `prefix/` in `bucket`. Call `open()` before use; the AWS chain gives the credentials."""

    def __init__(
        self, *, bucket: str, prefix: str = "", endpoint: str = "", region: str = "", setting: str = FIRST_SETTING
    ) -> None:
        """`setting`: the one that names this store, for remedies."""
        self._setting = setting
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._endpoint = endpoint
        self._region = region
        self._is_directory = bucket.endswith(DIRECTORY_SUFFIX)
        self._place = f"bucket {bucket!r} at {endpoint or 'AWS'}"
        self._stack = AsyncExitStack()
        self._opened: S3Client | None = None
        self._direct: Direct | None = None

    async def open(self) -> None:
        """Make the client without sending anything yet. Raises StoreMisconfiguredError."""
        if self._opened is not None:
            return
        sessions: list[OneTrySession] = []

        def make_session(**settings: Any) -> OneTrySession:
            sessions.append(OneTrySession(**settings))
            return sessions[-1]

        config = AioConfig(
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            parameter_validation=False,
            max_pool_connections=POOL_CONNECTIONS,
            connect_timeout=CONNECT_TIMEOUT_S,
            read_timeout=READ_TIMEOUT_S,
            # One attempt: only `Retrying` may repeat a request, because it knows which PUT is in doubt.
            retries={"mode": "standard", "total_max_attempts": 1},
            http_session_cls=cast("Any", make_session),
            # A server at an address of its own rarely has a DNS name for each bucket.
            s3={"addressing_style": "path" if self._endpoint else "auto", "payload_signing_enabled": False},
        )
        try:
            session: Any = aioboto3.Session()  # typed `Any`: the stubs cover 400 services, and only one is installed
            region: str | None = self._region or session.region_name or (DEFAULT_REGION if self._endpoint else None)
            client: S3Client = await self._stack.enter_async_context(
                session.client("s3", region_name=region, endpoint_url=self._endpoint or None, config=config)
            )
            credentials = await session.get_credentials()
        except (BotoCoreError, ValueError) as error:
            raise StoreMisconfiguredError(
                f"cannot make a client for {self._place}: {error}",
                remedy=f"check region and endpoint in {self._setting} and AWS_PROFILE",
            ) from error
        client.meta.events.register("before-sign.s3.PutObject", _drop_expect)
        client.meta.events.register("before-sign.s3.UploadPart", _drop_expect)
        # Without credentials the client says so at the first request.
        if credentials is not None and not self._is_directory:
            self._direct = Direct(sessions[0], credentials, SystemClock())
            learn: Any = self._direct.learn  # awaited, which the stubs do not say
            client.meta.events.register("before-send.s3.GetObject", learn)
            client.meta.events.register("before-send.s3.PutObject", learn)
        self._opened = client

    async def close(self) -> None:
        self._opened = self._direct = None
        await self._stack.aclose()

    @property
    def _s3(self) -> S3Client:
        if self._opened is None:
            raise BugError(f"{self._place} was used before open() or after close()")
        return self._opened

    async def get(self, key: str) -> bytes:
        return await self._ask("get", self._get(self._whole(key)), key=key)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        check_range(start, length)
        return await self._ask("get a range of", self._get_range(self._whole(key), start, length), key=key)

    async def put_if_absent(self, key: str, body: Body, *, crc32c: int) -> None:
        await self._ask("put", self._put(self._whole(key), body, encode_crc32c(crc32c)), key=key, writes=True)

    async def head(self, key: str) -> ObjectStat:
        head = self._s3.head_object(Bucket=self._bucket, Key=self._whole(key), ChecksumMode="ENABLED")
        found = await self._ask("head", head, key=key)
        return ObjectStat(
            key=key,
            size_bytes=found["ContentLength"],
            last_modified_ms=int(found["LastModified"].timestamp() * 1000),
            crc32c=decode_crc32c(found.get("ChecksumCRC32C", "")),
        )

    async def delete_many(self, keys: Sequence[str]) -> Deleted:
        """Delete in requests of up to 1,000 keys. When a later request fails, its keys are reported as failed."""
        for key in keys:
            check_key(key)
        done: list[str] = []
        failed: dict[str, str] = {}
        for start in range(0, len(keys), DELETE_KEYS_MAX):
            chunk = keys[start : start + DELETE_KEYS_MAX]
            try:
                await self._delete_chunk(chunk, done, failed)
            except ObjectStoreError as error:
                # With keys deleted already, raising would hide which ones are gone.
                if not done:
                    raise
                failed.update(dict.fromkeys(chunk, str(error)))
        return Deleted(keys=tuple(done), failed=failed)

    async def list(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[ObjectStat]:
        if not self._is_directory:
            async for stat in self._pages(prefix, start_after):
                yield stat
            return
        # A directory bucket takes only prefixes that end in "/". All of the listing is held until it is sorted: the L0
        # files that are not merged or deleted yet.
        after = start_after.encode()
        folder = prefix[: prefix.rfind("/") + 1]
        found = [stat async for stat in self._pages(folder) if stat.key.startswith(prefix)]
        for stat in sorted(found, key=lambda stat: stat.key.encode()):
            if stat.key.encode() > after:
                yield stat

    async def _pages(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectStat]:
        """The listing in the bucket's own order."""
        place: dict[str, Any] = {"StartAfter": self._prefix + start_after} if start_after else {}
        while True:
            page: ListObjectsV2OutputTypeDef = await self._ask(
                "list", self._s3.list_objects_v2(Bucket=self._bucket, Prefix=self._prefix + prefix, **place)
            )
            for entry in page.get("Contents", []):
                yield ObjectStat(
                    key=entry.get("Key", "").removeprefix(self._prefix),
                    size_bytes=entry.get("Size", 0),
                    last_modified_ms=int(entry["LastModified"].timestamp() * 1000) if "LastModified" in entry else 0,
                )
            if not page.get("IsTruncated") or "NextContinuationToken" not in page:
                return
            # It takes precedence over StartAfter, which may stay.
            place["ContinuationToken"] = page["NextContinuationToken"]

    async def start_multipart(self, key: str) -> S3Multipart:
        begin = self._s3.create_multipart_upload(
            Bucket=self._bucket, Key=self._whole(key), ChecksumAlgorithm="CRC32C", ChecksumType="FULL_OBJECT"
        )
        begun = await self._ask("begin an upload of", begin, key=key)
        return S3Multipart(self, key, begun["UploadId"])

    async def abort_multiparts(self, *, older_than_ms: int) -> int:
        """MinIO lists an upload only for its exact key: there this finds none and aborts none."""
        aborted = 0
        async for begun, upload_id in self._uploads():
            if begun.begun_ms < older_than_ms:
                await self.abort_upload(begun.key, upload_id)
                aborted += 1
        return aborted

    async def begun_uploads(self) -> AsyncIterator[BegunUpload]:
        async for begun, _ in self._uploads():
            yield begun

    async def _uploads(self) -> AsyncIterator[tuple[BegunUpload, str]]:
        """Each with its upload id."""
        place: dict[str, Any] = {}
        while True:
            page = await self._ask(
                "list uploads", self._s3.list_multipart_uploads(Bucket=self._bucket, Prefix=self._prefix, **place)
            )
            for upload in page.get("Uploads", []):
                if "Initiated" in upload:
                    key = upload.get("Key", "").removeprefix(self._prefix)
                    begun = BegunUpload(key=key, begun_ms=int(upload["Initiated"].timestamp() * 1000))
                    yield begun, upload.get("UploadId", "")
            if not page.get("IsTruncated"):
                return
            place = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}

    # ---- requests

    def _whole(self, key: str) -> str:
        check_key(key)
        return self._prefix + key

    async def _ask(self, doing: str, request: Awaitable[T], *, key: str = "", writes: bool = False) -> T:
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                return await request
        except CLIENT_ERRORS as error:
            raise translate(
                error, place=self._place, doing=doing, key=key, writes=writes, setting=self._setting
            ) from error

    async def _get(self, whole_key: str) -> bytes:
        read, _ = await self._read(whole_key, None)
        return read

    async def _get_range(self, whole_key: str, start: int, length: int) -> bytes:
        try:
            read, is_range = await self._read(whole_key, (start, length))
        except self._s3.exceptions.ClientError as error:
            # The range begins at or past the end, which the contract answers with no bytes.
            if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") == 416:
                return b""
            raise
        # A server may ignore Range and answer 200 with everything (RFC 9110 section 14.2).
        return read if is_range else read[start : start + length]

    async def _read(self, whole_key: str, span: tuple[int, int] | None) -> tuple[bytes, bool]:
        """The object or its `span` (start, length): the body of the answer, and whether it is a range of the object."""
        s3 = self._s3
        if self._direct is not None:
            answer = await self._direct.get(whole_key, span)
            if answer is not None:
                return answer.body, "Content-Range" in answer.headers
        asking.set(whole_key)
        only: Mapping[str, Any] = {} if span is None else {"Range": range_header(span)}
        found = await s3.get_object(Bucket=self._bucket, Key=whole_key, **only)
        async with found["Body"] as body:
            return await body.read(), "ContentRange" in found

    async def _put(self, whole_key: str, body: Body, checksum: str) -> None:
        s3 = self._s3
        if self._direct is not None and await self._direct.put_if_absent(whole_key, body, checksum) is not None:
            return
        asking.set(whole_key)
        await s3.put_object(
            Bucket=self._bucket, Key=whole_key, Body=_as_payload(body), IfNoneMatch="*", ChecksumCRC32C=checksum
        )

    async def _delete_chunk(self, chunk: Sequence[str], done: list[str], failed: dict[str, str]) -> None:
        objects: list[ObjectIdentifierTypeDef] = [{"Key": self._whole(key)} for key in chunk]
        answer = await self._ask(
            "delete from", self._s3.delete_objects(Bucket=self._bucket, Delete={"Objects": objects, "Quiet": False})
        )
        gone = {entry.get("Key", "") for entry in answer.get("Deleted", [])}
        reasons = {
            entry.get("Key", ""): f"{entry.get('Code', '')} {entry.get('Message', '')}".strip()
            for entry in answer.get("Errors", [])
        }
        for key in chunk:
            # Only what the store names as deleted counts: an answer may leave a key out.
            if self._prefix + key in gone:
                done.append(key)
            else:
                failed[key] = reasons.get(self._prefix + key, "the store did not confirm the deletion")

    async def upload_part(self, key: str, upload_id: str, number: int, part: Body) -> CompletedPartTypeDef:
        checksum = encode_crc32c(crc32c_of(part))
        upload = self._s3.upload_part(
            Bucket=self._bucket,
            Key=self._whole(key),
            UploadId=upload_id,
            PartNumber=number,
            Body=_as_payload(part),
            ChecksumCRC32C=checksum,
        )
        answer = await self._ask("upload a part of", upload, key=key)
        return {"PartNumber": number, "ETag": answer["ETag"], "ChecksumCRC32C": checksum}

    async def complete_upload(
        self, key: str, upload_id: str, parts: Sequence[CompletedPartTypeDef], crc32c: int
    ) -> None:
        complete = self._s3.complete_multipart_upload(
            Bucket=self._bucket,
            Key=self._whole(key),
            UploadId=upload_id,
            MultipartUpload={"Parts": parts},
            ChecksumCRC32C=encode_crc32c(crc32c),
            ChecksumType="FULL_OBJECT",
            IfNoneMatch="*",
        )
        await self._ask("complete", complete, key=key, writes=True)

    async def abort_upload(self, key: str, upload_id: str) -> None:
        abort = self._s3.abort_multipart_upload(Bucket=self._bucket, Key=self._whole(key), UploadId=upload_id)
        try:
            await self._ask("abort an upload of", abort, key=key)
        except ObjectStoreError as error:
            cause = error.__cause__
            # Completed or aborted already: there is nothing left to abort.
            if not isinstance(cause, self._s3.exceptions.NoSuchUpload):
                raise


class S3Multipart:
    """One upload in progress. A part whose answer was lost may be written again: only parts we know of are joined."""

    def __init__(self, store: S3Store, key: str, upload_id: str) -> None:
        self._store = store
        self._key = key
        self._upload_id = upload_id
        self._parts: list[CompletedPartTypeDef] = []
        self._crc32c = 0

    async def write(self, part: Body) -> None:
        self._parts.append(await self._store.upload_part(self._key, self._upload_id, len(self._parts) + 1, part))
        self._crc32c = crc32c_of(part, self._crc32c)

    async def complete(self) -> None:
        try:
            await self._store.complete_upload(self._key, self._upload_id, self._parts, self._crc32c)
        # The store keeps the parts of a refused upload, and bills them, until it is aborted.
        except ObjectExistsError:
            await self.abort()
            raise

    async def abort(self) -> None:
        await self._store.abort_upload(self._key, self._upload_id)


def encode_crc32c(crc: int) -> str:
    """The form of the `x-amz-checksum-crc32c` header: base64 of four big-endian bytes."""
    return base64.b64encode(crc.to_bytes(4, "big")).decode()


def decode_crc32c(header: str) -> int | None:
    """None for an absent header, and for a checksum of checksums (`...-3`), which tells nothing about the whole."""
    if not header or "-" in header:
        return None
    try:
        raw = base64.b64decode(header, validate=True)
    except ValueError:
        return None
    return int.from_bytes(raw, "big") if len(raw) == 4 else None


def _as_payload(body: Body) -> bytes:
    """The body as `bytes`, which the client sends from where it lies; it would copy a memoryview twice."""
    return body if isinstance(body, bytes) else bytes(body)


def _drop_expect(request: Any, **_: object) -> None:
    del request.headers["Expect"]  # no KeyError if it is absent: email.message semantics
