"""PUT and GET without the client's machinery: signed by `storage/s3/sigv4.py`, sent over the client's own HTTP session.

A request depends on many things that the client knows: endpoint, addressing, region, dual stack, proxies. This module
works none of them out again. Each PUT and GET that the client makes passes `learn`, which signs the same request. Later
requests go directly only if both signatures are equal. Anything unfamiliar stays with the client.

A store may want a request sent elsewhere (a bucket of another region). Such an answer proves that nothing was done. The
client repeats the request and follows, and `learn` sees where it arrives.

Pool, TLS, time limits and "one try only" are those of the client's session. Each request asks the client's credentials
object, which renews them.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

import aiohttp
from aiohttp.abc import AbstractStreamWriter
from aiohttp.payload import Payload
from botocore.exceptions import ClientError, HTTPClientError
from botocore.parsers import create_parser
from yarl import URL

from runtime.clock import Clock
from storage.objects import Body
from storage.parts import stretches
from storage.s3.session import OneTrySession
from storage.s3.sigv4 import UNSIGNED_PAYLOAD, SigningKey, authorization, derive_key, encode_key, timestamp_of

if TYPE_CHECKING:
    from botocore.awsrequest import AWSPreparedRequest

WRITE_BYTES = 1024 * 1024
"""The bytes of a body that are handed to the transport at once. A PUT of 8 MiB cost 2.4 ms of CPU by this, 3.9 ms by a
quarter of it, 7.8 ms by a sixteenth.
"""
_REDIRECTED = {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"}
"""The answers that the client follows into another region (botocore's `S3RegionRedirectorv2`), with 301, 302, 307."""
_NOT_SIGNED = {"amz-sdk-invocation-id", "amz-sdk-request", "user-agent", "content-length", "authorization"}
"""Headers that the client adds after signing, or does not sign."""
_SET_BY_SIGNING = {"x-amz-date", "x-amz-security-token", "x-amz-content-sha256"}

asking: ContextVar[str] = ContextVar("asking", default="")
"""The whole key that the client is about to ask for, because its events do not tell."""


_parser: Any = create_parser("rest-xml")


class FrozenCredentials(Protocol):
    @property
    def access_key(self) -> str: ...
    @property
    def secret_key(self) -> str: ...
    @property
    def token(self) -> str | None: ...


class Credentials(Protocol):
    async def get_frozen_credentials(self) -> FrozenCredentials: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The part of a request that does not change from one to the next."""

    origin: str
    """`http(s)://host:port`."""
    host: str
    """The `host` header."""
    path: str
    """The path before the key: `/bucket/`, or `/` where the bucket is part of the host."""
    region: str
    service: str


class Direct:
    """The direct way to one bucket. `learn` is for the client's event `before-send`."""

    def __init__(self, http: OneTrySession, credentials: Credentials, clock: Clock) -> None:
        self._http = http
        self.credentials = credentials
        self._clock = clock
        self._place: Place | None = None
        self._session: aiohttp.ClientSession | None = None
        self._user_agent = ""
        self._key: tuple[tuple[str, str, str, Place], SigningKey] | None = None

    async def learn(self, request: AWSPreparedRequest, **_: object) -> None:
        """Read a request that the client is about to send."""
        self._place = None
        place = _place_of(request, asking.get())
        session = await self._http.direct_session(request.url or "")
        if session is None or place is None:
            return
        sent = {name.lower(): _text(value) for name, value in request.headers.items()}
        signed = {name: value for name, value in sent.items() if name not in _NOT_SIGNED | _SET_BY_SIGNING}
        path = place.path + encode_key(asking.get())
        ours = await self._sign(place, request.method or "", path, signed, sent.get("x-amz-date", ""))
        if ours["authorization"] == sent.get("authorization"):
            self._place, self._session, self._user_agent = place, session, sent.get("user-agent", "")

    async def get(self, key: str, span: tuple[int, int] | None = None) -> Answer | None:
        """The object, or the bytes of `span` (start, length). None: nothing was done, and the client must ask.

        Raises ClientError for a refusal.
        """
        return await self._send("GET", key, {} if span is None else {"range": range_header(span)}, None)

    async def put_if_absent(self, key: str, body: Body, checksum: str) -> Answer | None:
        """None: nothing was done, and the client must ask. Raises ClientError for a refusal."""
        headers = {"if-none-match": "*", "x-amz-checksum-crc32c": checksum}
        return await self._send("PUT", key, headers, BufferPayload(body))

    async def _send(self, method: str, key: str, headers: dict[str, str], body: Payload | None) -> Answer | None:
        place, session = self._place, self._session
        if place is None or session is None:
            return None
        path = place.path + encode_key(key)
        headers = await self._sign(place, method, path, headers, timestamp_of(self._clock.wall_ms()))
        headers["user-agent"] = self._user_agent
        headers["accept-encoding"] = "identity"
        url = URL(place.origin + path, encoded=True)
        try:
            response = await session.request(method, url, headers=headers, data=body, allow_redirects=False)
            answer = Answer(status=response.status, headers=response.headers, body=await response.read())
        except (aiohttp.ClientError, OSError):
            raise
        except Exception as error:  # as the client does: the request may have been sent
            raise HTTPClientError(error=error) from error
        if answer.status < 300:
            return answer
        error = _refusal(answer, method)
        if answer.status in (301, 302, 307, 308) or error.response.get("Error", {}).get("Code") in _REDIRECTED:
            return None
        raise error

    async def _sign(
        self, place: Place, method: str, path: str, headers: Mapping[str, str], timestamp: str
    ) -> dict[str, str]:
        """All signed headers and the signature."""
        frozen = await self.credentials.get_frozen_credentials()
        signed = {
            **headers,
            "host": place.host,
            "x-amz-content-sha256": UNSIGNED_PAYLOAD,
            "x-amz-date": timestamp,
        }
        if frozen.token:
            signed["x-amz-security-token"] = frozen.token
        key = self._signing_key(place, frozen, timestamp[:8])
        signed["authorization"] = authorization(
            key, method, path, sorted(signed.items()), timestamp=timestamp, payload_hash=UNSIGNED_PAYLOAD
        )
        return signed

    @property
    def place(self) -> Place | None:
        """None: not learned, or the client's requests are unlike ours."""
        return self._place

    @property
    def ca_bundle(self) -> str:
        """The file of certificates that the client trusts instead of the usual ones; "" = the usual ones."""
        return self._http.ca_bundle

    def _signing_key(self, place: Place, frozen: FrozenCredentials, day: str) -> SigningKey:
        """The key of the last request, while it holds: until the day, the credentials or the region change."""
        kept = self._key
        if kept is not None and kept[0] == (day, frozen.access_key, frozen.secret_key, place):
            return kept[1]
        key = derive_key(
            access_key=frozen.access_key,
            secret_key=frozen.secret_key,
            day=day,
            region=place.region,
            service=place.service,
        )
        self._key = ((day, frozen.access_key, frozen.secret_key, place), key)
        return key


class BufferPayload(Payload):
    """A body that is sent from where it lies. aiohttp would copy a memoryview, and warns of large bytes."""

    _autoclose = True

    def __init__(self, body: Body) -> None:
        super().__init__(body)
        self._body = body
        self._size = len(body)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return bytes(self._body).decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        await self.write_with_length(writer, None)

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        for views in stretches(self._body, WRITE_BYTES):
            await writer.write(views[0] if len(views) == 1 else b"".join(views))


def range_header(span: tuple[int, int]) -> str:
    """`Range` for (start, length)."""
    return f"bytes={span[0]}-{span[0] + span[1] - 1}"


def _place_of(request: AWSPreparedRequest, key: str) -> Place | None:
    """None if the request is of another kind than ours: with a query, or without a signature of version 4."""
    parts = urlsplit(request.url or "")
    whole = encode_key(key)
    scope = _text(request.headers.get("Authorization") or "").partition("Credential=")[2].partition(",")[0].split("/")
    if parts.query or not parts.path.endswith(f"/{whole}") or len(scope) < 5:
        return None
    region, service = scope[-3], scope[-2]
    port = None if parts.port == {"http": 80, "https": 443}[parts.scheme] else parts.port
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else f"{parts.hostname}"
    return Place(
        origin=f"{parts.scheme}://{parts.netloc}",
        host=host if port is None else f"{host}:{port}",
        path=parts.path.removesuffix(whole),
        region=region,
        service=service,
    )


def _refusal(answer: Answer, method: str) -> ClientError:
    """The error that the client would raise, read by its own parser."""
    said: Any = _parser.parse({"status_code": answer.status, "headers": answer.headers, "body": answer.body}, None)
    return ClientError(said, "GetObject" if method == "GET" else "PutObject")


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
