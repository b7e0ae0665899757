"""AWS Signature Version 4 of a request's headers, as S3 wants it. Pure: the time is an argument.

The rules are in the AWS General Reference, "Create a signed AWS API request": a canonical request, its hash in a string
to sign, and an HMAC under a key that holds for one day, region and service. S3 takes the path as it was sent, encoded
once. `tests/unit/storage/test_sigv4.py` holds every signature against botocore's.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import quote

UNSIGNED_PAYLOAD = "UNSIGNED-PAYLOAD"
"""The hash of a body that is not signed."""
_ALGORITHM = "AWS4-HMAC-SHA256"


@dataclass(frozen=True, slots=True, kw_only=True)
class SigningKey:
    """A key of one day; make it by `derive_key`. It costs four HMACs, so callers keep it."""

    access_key: str
    scope: str
    """`yyyymmdd/region/service/aws4_request`."""
    secret: bytes = field(repr=False)


def derive_key(*, access_key: str, secret_key: str, day: str, region: str, service: str = "s3") -> SigningKey:
    """The key for `day` (`yyyymmdd`, UTC)."""
    secret = f"AWS4{secret_key}".encode()
    for part in (day, region, service, "aws4_request"):
        secret = hmac.digest(secret, part.encode(), "sha256")
    return SigningKey(access_key=access_key, scope=f"{day}/{region}/{service}/aws4_request", secret=secret)


def authorization(
    key: SigningKey, method: str, path: str, headers: Sequence[tuple[str, str]], *, timestamp: str, payload_hash: str
) -> str:
    """The `Authorization` header of a request without a query.

    `path` is percent-encoded, as it is sent. `headers` are the signed ones, `host` among them: names in lower case, in
    order of names. `timestamp` is that of the `x-amz-date` header.
    """
    lines = "".join([f"{name}:{' '.join(value.split())}\n" for name, value in headers])
    names = ";".join([name for name, _ in headers])
    canonical = f"{method}\n{path}\n\n{lines}\n{names}\n{payload_hash}"
    to_sign = f"{_ALGORITHM}\n{timestamp}\n{key.scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    signature = hmac.digest(key.secret, to_sign.encode(), "sha256").hex()
    return f"{_ALGORITHM} Credential={key.access_key}/{key.scope}, SignedHeaders={names}, Signature={signature}"


def timestamp_of(wall_ms: int) -> str:
    """The form of `x-amz-date`: `yyyymmddThhmmssZ`. Its first eight characters are the day of the key."""
    return datetime.fromtimestamp(wall_ms // 1000, UTC).strftime("%Y%m%dT%H%M%SZ")


def encode_key(key: str) -> str:
    """A key as it stands in a path. Only the unreserved characters and "/" stand for themselves."""
    return quote(key, safe="/~")
