"""Whether a bucket keeps deleted objects, asked from a real S3 server, and the doctor's verdict on one."""

from __future__ import annotations

import json
from typing import Any

import boto3
import pytest
from click.testing import CliRunner

from siltstone.cli import main
from storage.objects import StoreMisconfiguredError
from storage.s3.bucket import BucketFacts, noncurrent_days, probe_bucket
from storage.urls import ObjectStoreUrl, parse_store_url
from tests.fixtures.s3 import BucketUrl

EXPIRE_AFTER_3 = {"NoncurrentDays": 3}


@pytest.fixture
def bucket(s3_url: BucketUrl) -> ObjectStoreUrl:
    return parse_store_url(s3_url())


def client_of(url: ObjectStoreUrl) -> Any:
    return boto3.client("s3", endpoint_url=url.endpoint, region_name=url.region)


def set_versioning(url: ObjectStoreUrl, status: str) -> None:
    client_of(url).put_bucket_versioning(Bucket=url.bucket, VersioningConfiguration={"Status": status})


async def test_a_plain_bucket_is_not_versioned(bucket: ObjectStoreUrl) -> None:
    assert await probe_bucket(bucket) == BucketFacts(versioned=False, noncurrent_days=None)


@pytest.mark.parametrize("status", ["Enabled", "Suspended"])
async def test_a_versioned_bucket_without_a_rule_keeps_everything(bucket: ObjectStoreUrl, status: str) -> None:
    set_versioning(bucket, "Enabled")
    set_versioning(bucket, status)
    assert await probe_bucket(bucket) == BucketFacts(versioned=True, noncurrent_days=None)


async def test_a_lifecycle_rule_for_our_prefix_counts(bucket: ObjectStoreUrl) -> None:
    set_versioning(bucket, "Enabled")
    rule = {"ID": "r", "Status": "Enabled", "Filter": {"Prefix": ""}, "NoncurrentVersionExpiration": EXPIRE_AFTER_3}
    client_of(bucket).put_bucket_lifecycle_configuration(Bucket=bucket.bucket, LifecycleConfiguration={"Rules": [rule]})
    assert await probe_bucket(bucket) == BucketFacts(versioned=True, noncurrent_days=3)


async def test_a_bucket_that_is_not_there_is_told(bucket: ObjectStoreUrl) -> None:
    client_of(bucket).delete_bucket(Bucket=bucket.bucket)
    with pytest.raises(StoreMisconfiguredError, match="NoSuchBucket"):
        await probe_bucket(bucket)


@pytest.mark.parametrize(
    ("rule", "days"),
    [
        ({"Filter": {"Prefix": "logs/"}}, 3),
        ({"Filter": {"Prefix": "logs/prod/"}}, 3),
        ({"Prefix": ""}, 3),
        ({"Filter": {}}, 3),
        ({}, 3),
        ({"Filter": {"Prefix": "logs/prod/l0/"}}, None),
        ({"Filter": {"Prefix": "other/"}}, None),
        ({"Filter": {"Tag": {"Key": "a", "Value": "b"}}}, None),
        ({"Filter": {"And": {"Prefix": "", "Tags": []}}}, None),
        ({"Filter": {"Prefix": ""}, "Status": "Disabled"}, None),
        ({"NoncurrentVersionExpiration": {"NoncurrentDays": 3, "NewerNoncurrentVersions": 2}}, None),
        ({"NoncurrentVersionExpiration": {}}, None),
    ],
)
def test_only_rules_that_remove_every_old_version_below_the_prefix_count(
    rule: dict[str, Any], days: int | None
) -> None:
    whole = {"Status": "Enabled", "NoncurrentVersionExpiration": EXPIRE_AFTER_3, **rule}
    assert noncurrent_days([whole], "logs/prod") == days


def test_the_doctor_looks_at_a_bucket(bucket: ObjectStoreUrl) -> None:
    set_versioning(bucket, "Enabled")
    ran = CliRunner().invoke(main, ["doctor", "--object-store", str(bucket), "--json"])
    checks = {check["name"]: check["verdict"] for check in json.loads(ran.stdout)}
    assert checks["store conditional create"] == checks["store clock"] == "ok"
    assert checks["store versioning"] == "warn"
    assert checks["postgres"] == "warn"  # not checked, because no option names it
    assert ran.exit_code == 0
