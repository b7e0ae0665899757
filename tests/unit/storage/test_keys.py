from __future__ import annotations

import hashlib
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.ids import SystemIds
from storage.keys import (
    PLAN_NAME,
    BadKeyError,
    FileKey,
    JobKey,
    check_key,
    failed_key,
    file_key,
    hour_of,
    job_key,
    parse_file_key,
    parse_job_key,
    unit_key,
    unread_key,
)

UUID7 = uuid.UUID("018bcfe5-68fa-7abc-8def-0123456789ab")
KEY = "l0/46/2023111422/7-3-018bcfe5-68fa-7abc-8def-0123456789ab.silt"


def test_a_key_has_level_shard_hour_writer_epoch_and_uuid() -> None:
    assert hashlib.sha256(UUID7.bytes).hexdigest().startswith("46")
    assert file_key(level=0, writer_id=7, epoch=3, file_uuid=UUID7, created_ms=1_700_000_000_250) == KEY


def test_hours_are_utc_and_end_where_hours_end() -> None:
    assert hour_of(0) == "1970010100"
    assert hour_of(3_599_999) == "1970010100"
    assert hour_of(3_600_000) == "1970010101"


@given(
    level=st.integers(0, 2),
    writer_id=st.integers(0, 2**31 - 1),
    epoch=st.integers(0, 2**31 - 1),
    created_ms=st.integers(0, 4_102_444_800_000),
    seed=st.integers(0, 2**32),
)
def test_what_is_made_is_parsed_back(level: int, writer_id: int, epoch: int, created_ms: int, seed: int) -> None:
    file_uuid = SystemIds(seed).uuid7(created_ms)
    key = file_key(level=level, writer_id=writer_id, epoch=epoch, file_uuid=file_uuid, created_ms=created_ms)
    check_key(key)
    assert parse_file_key(key) == FileKey(
        level=level, hour=hour_of(created_ms), writer_id=writer_id, epoch=epoch, file_uuid=file_uuid
    )


@pytest.mark.parametrize(
    "key",
    [
        "",
        "cluster.json",
        KEY.upper(),
        f"p/{KEY}",
        f"{KEY}\n",
        KEY.replace("l0/", "l3/"),
        KEY.replace("/46/", "/47/"),
        KEY.replace("/46/", "/"),
        KEY.replace("2023111422", "2023111424"),
        KEY.replace("2023111422", "2023023010"),
        KEY.replace("/7-3-", "/07-3-"),
        KEY.replace("/7-3-", "/-7-3-"),
        KEY.replace("/7-3-", "/7-"),
        KEY.replace("-7abc-", "-4abc-"),
        KEY.replace("7-3", "٧-3"),
        KEY.removesuffix(".silt"),
    ],
)
def test_anything_else_is_no_key_of_a_file(key: str) -> None:
    with pytest.raises(BadKeyError):
        parse_file_key(key)


@pytest.mark.parametrize(
    "wrong", [{"level": 3}, {"level": -1}, {"writer_id": -1}, {"epoch": -1}, {"file_uuid": uuid.UUID(int=5)}]
)
def test_a_key_that_could_not_be_parsed_is_not_made(wrong: dict[str, int]) -> None:
    with pytest.raises(BadKeyError):
        file_key(**{"level": 0, "writer_id": 1, "epoch": 1, "file_uuid": UUID7, "created_ms": 0} | wrong)


FINGERPRINT = "0123456789abcdef" * 2


def test_keys_of_merge_jobs_say_job_plan_and_unit() -> None:
    assert job_key(12, FINGERPRINT) == f"jobs/12/{FINGERPRINT}/"
    plan = job_key(12, FINGERPRINT, PLAN_NAME)
    assert plan == f"jobs/12/{FINGERPRINT}/plan.json.zst"
    assert parse_job_key(plan) == JobKey(job_id=12, fingerprint=FINGERPRINT, name=PLAN_NAME)
    assert parse_job_key(plan).unit is None
    assert parse_job_key(unit_key(12, FINGERPRINT, 7)).unit == 7
    assert parse_job_key(job_key(12, FINGERPRINT, "survivors/u7.json.zst")).unit is None
    unread = parse_job_key(unread_key(12, FINGERPRINT, 8))
    assert (unread.unit, unread.failed_unit) == (None, 8)
    failed = parse_job_key(failed_key(12, FINGERPRINT, 7))
    assert (failed.unit, failed.failed_unit, parse_job_key(plan).failed_unit) == (None, 7, None)


@pytest.mark.parametrize(
    "key",
    [
        "jobs/",
        f"jobs/12/{FINGERPRINT}/",
        f"jobs/12/{FINGERPRINT}/../plan.json.zst",
        f"jobs/12/{FINGERPRINT}/a//b",
        f"jobs/12/{FINGERPRINT}/u7.json.zst\n",
        f"jobs/012/{FINGERPRINT}/plan.json.zst",
        f"jobs/12/{FINGERPRINT[1:]}/plan.json.zst",
        f"jobs/12/{FINGERPRINT.upper()}/plan.json.zst",
        f"p/jobs/12/{FINGERPRINT}/plan.json.zst",
        KEY,
    ],
)
def test_anything_else_is_no_key_of_a_merge_job(key: str) -> None:
    with pytest.raises(BadKeyError):
        parse_job_key(key)
