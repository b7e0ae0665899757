"""Our signatures against botocore's, to the last byte."""

from __future__ import annotations

import random
from typing import Any

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials

from storage.s3.sigv4 import UNSIGNED_PAYLOAD, authorization, derive_key, encode_key, timestamp_of

HOSTS = (
    "https://bucket.s3.eu-central-1.amazonaws.com/",
    "https://s3.us-west-2.amazonaws.com/bucket/",
    "http://127.0.0.1:9000/bucket/",
    "http://127.0.0.1:80/bucket/",
    "https://store.example:443/b.u-c/pre/fix/",
    "http://[::1]:9000/bucket/",
)
KEYS = (
    "k",
    "l0/aa/2026112303/1-2-x.silt",
    "a b+c",
    "é/ü~_-.",
    "%41&=?#;:@!$'()*,[]",
    "a//b/../c",
    "\N{SNOWMAN}",
    "'\"<>",
)
TOKENS = ("", "short", "IQoJb3JpZ2luX2VjE" * 40 + "+/==")
HEADERS: tuple[dict[str, str], ...] = (
    {},
    {"range": "bytes=0-65535"},
    {"if-none-match": "*", "x-amz-checksum-crc32c": "qTxfkw=="},
    {"x-amz-meta-blanks": "  a   b\tc "},
)


def host_of(url: str) -> str:
    host = url.split("/")[2]
    return host.removesuffix(":80") if url.startswith("http:") else host.removesuffix(":443")


def by_botocore(
    method: str, url: str, headers: dict[str, str], secrets: tuple[str, str, str], region: str
) -> dict[str, str]:
    request: Any = AWSRequest(method=method, url=url, headers=headers)
    config = Config(s3={"payload_signing_enabled": False})
    request.context.update(client_config=config, payload_signing_enabled=False)
    access_key, secret_key, token = secrets
    S3SigV4Auth(Credentials(access_key, secret_key, token or None), "s3", region).add_auth(request)
    return {name.lower(): value for name, value in request.headers.items()}


def test_every_signature_is_botocores() -> None:
    chance = random.Random(7)
    cases = 0
    for base in HOSTS:
        for key in KEYS:
            for token in TOKENS:
                for given in HEADERS:
                    method, region = chance.choice(["GET", "PUT"]), chance.choice(["us-east-1", "eu-central-1"])
                    secrets = (f"AK{chance.getrandbits(64):X}", f"{chance.getrandbits(200):x}/+", token)
                    url = base + encode_key(key)
                    expected = by_botocore(method, url, given, secrets, region)
                    timestamp = expected["x-amz-date"]
                    headers = {
                        **given,
                        "host": host_of(url),
                        "x-amz-content-sha256": UNSIGNED_PAYLOAD,
                        "x-amz-date": timestamp,
                    }
                    if token:
                        headers["x-amz-security-token"] = token
                    signing = derive_key(access_key=secrets[0], secret_key=secrets[1], day=timestamp[:8], region=region)
                    path = "/" + url.split("/", 3)[3]
                    ours = authorization(
                        signing,
                        method,
                        path,
                        sorted(headers.items()),
                        timestamp=timestamp,
                        payload_hash=UNSIGNED_PAYLOAD,
                    )
                    assert ours == expected["authorization"], (url, token[:5], given)
                    cases += 1
    assert cases == len(HOSTS) * len(KEYS) * len(TOKENS) * len(HEADERS)


def test_a_timestamp_is_that_of_the_second_in_utc() -> None:
    assert timestamp_of(0) == "19700101T000000Z"
    assert timestamp_of(1_795_403_188_999) == "20261123T030628Z"


def test_a_signing_key_does_not_show_its_secret() -> None:
    key = derive_key(access_key="AK", secret_key="hidden", day="20261123", region="us-east-1")
    assert repr(key.secret) not in repr(key)
