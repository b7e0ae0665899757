"""A bucket's settings, for `siltstone doctor`: does it keep deleted objects?

In a versioned bucket a delete only hides the object: records of deleted topics and of tombstoned keys stay for ever
unless a lifecycle rule expires noncurrent versions. This module asks two questions and changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import aioboto3
from botocore.exceptions import ClientError

from storage.s3.errors import CLIENT_ERRORS, translate
from storage.urls import ObjectStoreUrl

_NOT_ANSWERED = {"AccessDenied", "MethodNotAllowed", "NotImplemented", "403", "405", "501"}


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketFacts:
    versioned: bool | None
    """None if the store would not say (no right to ask, or it does not know the question)."""
    noncurrent_days: int | None
    """The days after which a lifecycle rule for our whole prefix removes noncurrent versions; None = never."""


async def probe_bucket(url: ObjectStoreUrl) -> BucketFacts:
    """Ask the store. Raises the errors of storage/objects.py, but none for a question that it does not answer."""
    place = f"bucket {url.bucket!r} at {url.endpoint or 'AWS'}"
    session: Any = aioboto3.Session()
    region: str | None = url.region or session.region_name or ("us-east-1" if url.endpoint else None)
    try:
        async with session.client("s3", region_name=region, endpoint_url=url.endpoint or None) as client:
            status = await _ask(client.get_bucket_versioning(Bucket=url.bucket))
            if status is None:
                return BucketFacts(versioned=None, noncurrent_days=None)
            # "Suspended" still keeps the versions that were made before.
            if status.get("Status") not in ("Enabled", "Suspended"):
                return BucketFacts(versioned=False, noncurrent_days=None)
            lifecycle = await _ask(client.get_bucket_lifecycle_configuration(Bucket=url.bucket)) or {}
            return BucketFacts(versioned=True, noncurrent_days=noncurrent_days(lifecycle.get("Rules", []), url.prefix))
    except CLIENT_ERRORS as error:
        raise translate(error, place=place, doing="ask about") from error


def noncurrent_days(rules: list[dict[str, Any]], prefix: str) -> int | None:
    """The shortest expiry of noncurrent versions among enabled rules that cover everything below `prefix`."""
    days: list[int] = []
    for rule in rules:
        expiry: dict[str, Any] = rule.get("NoncurrentVersionExpiration", {})
        condition: dict[str, Any] = rule.get("Filter", {})
        # Rules by tag or size ("And", "Tag", "ObjectSize...") cover only some objects.
        covered: str | None = rule.get("Prefix", condition.get("Prefix", "" if not condition else None))
        kept: int = expiry.get("NewerNoncurrentVersions", 0)
        covers_all = not kept and covered is not None and f"{prefix}/".startswith(covered)
        if covers_all and rule.get("Status") == "Enabled" and "NoncurrentDays" in expiry:
            days.append(int(expiry["NoncurrentDays"]))
    return min(days, default=None)


async def _ask(question: Any) -> dict[str, Any] | None:
    """None when the store does not answer this question, {} when it has no such configuration."""
    try:
        return await question
    except ClientError as error:
        response: Any = error.response
        code = str(response.get("Error", {}).get("Code", ""))
        if code == "NoSuchLifecycleConfiguration":
            return {}
        if code in _NOT_ANSWERED:
            return None
        raise
