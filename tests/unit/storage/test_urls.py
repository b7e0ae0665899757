from __future__ import annotations

from pathlib import Path

import pytest

from runtime.errors import SiltstoneError
from storage.keys import PLAN_NAME, BadKeyError, job_key
from storage.local import LocalStore
from storage.memory import MemoryStore
from storage.objects import StoreMisconfiguredError
from storage.s3.store import S3Store
from storage.urls import ObjectStoreUrl, object_url, open_store, parse_store_url, split_object_url


def test_an_s3_url_has_bucket_prefix_endpoint_and_region() -> None:
    url = parse_store_url("s3://logs/team/a?endpoint=http://127.0.0.1:9000/&region=eu-west-1")
    assert url == ObjectStoreUrl(
        scheme="s3", bucket="logs", prefix="team/a", endpoint="http://127.0.0.1:9000", region="eu-west-1"
    )


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("s3://logs", "s3://logs"),
        ("s3://logs/", "s3://logs"),
        ("s3://logs//a/b//", "s3://logs/a/b"),
        ("s3://logs/a%20b", "s3://logs/a%20b"),
        ("s3://logs?endpoint=https://s3.example", "s3://logs?endpoint=https%3A%2F%2Fs3.example"),
        ("s3://logs?client=obstore&region=r", "s3://logs?region=r&client=obstore"),
        ("s3://logs?client=aioboto3", "s3://logs"),
        ("file:///var/lib/x", "file:///var/lib/x"),
        ("file://localhost/x%20y/", "file:///x%20y"),
        ("memory://", "memory://"),
    ],
)
def test_a_url_has_one_normal_form_that_parses_to_the_same(text: str, normal: str) -> None:
    assert str(parse_store_url(text)) == normal
    assert parse_store_url(normal) == parse_store_url(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "scheme"),
        ("gs://bucket", "'gs'"),
        ("/var/lib/x", "scheme"),
        ("s3://", "bucket"),
        ("s3://a", "bucket"),
        ("s3://bad_/x", "bucket"),
        ("s3://logs/a//b", "prefix"),
        ("s3://logs/../b", "prefix"),
        ("s3://logs?zone=1", "'zone'"),
        ("s3://logs?region=a&region=b", "twice"),
        ("s3://logs?region=", "region"),
        ("s3://logs?client=boto3", "'boto3'"),
        ("s3://logs?region=EU!", "region"),
        ("s3://logs?endpoint=127.0.0.1:9000", "endpoint"),
        ("s3://logs?endpoint=ftp://h", "endpoint"),
        ("s3://logs?endpoint=http://h:99999", "endpoint"),
        ("s3://logs?endpoint=http://h/path", "path"),
        ("s3://logs#x", "#"),
        ("s3://[bad", "cannot be read"),
        ("file://relative/dir", "'relative'"),
        ("file:///", "directory"),
        ("file:///a/../b", "directory"),
        ("file:///a?b=c", "parameters"),
        ("memory://named", "memory"),
    ],
)
def test_a_bad_url_is_refused_naming_the_part(text: str, said: str) -> None:
    with pytest.raises(StoreMisconfiguredError) as caught:
        parse_store_url(text)
    assert said in caught.value.message


@pytest.mark.parametrize(
    "text",
    [
        "s3://AKIAEXAMPLE:hunter2@logs/p",
        "s3://logs?access_key_id=AKIAEXAMPLE&secret=hunter2",
        "s3://logs?endpoint=http://AKIAEXAMPLE:hunter2@h:9000",
    ],
)
def test_credentials_in_a_url_are_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(StoreMisconfiguredError, match="credentials") as caught:
        parse_store_url(text)
    error: SiltstoneError = caught.value
    assert "AWS_ACCESS_KEY_ID" in error.remedy
    assert "hunter2" not in str(error)
    assert "AKIAEXAMPLE" not in str(error)


def test_each_scheme_opens_its_store(tmp_path: Path) -> None:
    assert isinstance(open_store("memory://"), MemoryStore)
    assert isinstance(open_store(f"file://{tmp_path}"), LocalStore)
    assert isinstance(open_store("s3://logs/p"), S3Store)


@pytest.mark.parametrize(
    ("store", "url"),
    [
        ("s3://logs", "s3://logs/{}"),
        ("s3://logs/jobs/a%20b", "s3://logs/jobs/a%20b/{}"),
        ("s3://logs/p?endpoint=http://127.0.0.1:9000&region=eu-west-1", None),
        ("file:///var/my%20data", "file:///var/my%20data/{}"),
    ],
)
def test_the_url_of_a_plan_leads_to_its_store_and_key(store: str, url: str | None) -> None:
    key = job_key(12, "0" * 32, PLAN_NAME)
    made = object_url(parse_store_url(store), key)
    assert url is None or made == url.format(key)
    assert split_object_url(made) == (parse_store_url(store), key)


def test_the_url_of_a_plan_names_no_optional_client() -> None:
    made = object_url(parse_store_url("s3://logs/p?region=r&client=obstore"), job_key(12, "0" * 32, PLAN_NAME))
    assert split_object_url(made)[0] == parse_store_url("s3://logs/p?region=r")


def test_no_other_process_reads_a_plan_in_memory_and_a_url_of_no_plan_is_refused() -> None:
    with pytest.raises(StoreMisconfiguredError, match="no other process"):
        object_url(parse_store_url("memory://"), job_key(12, "0" * 32, PLAN_NAME))
    for url in ("s3://logs/p", "s3://logs/jobs/", "file:///d/jobs/12/plan.json.zst", "file:///d/l0/x"):
        with pytest.raises(BadKeyError):
            split_object_url(url)
