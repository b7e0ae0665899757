from __future__ import annotations

import hashlib
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siltstone.ids import SystemIds
from storage.keys import BadKeyError, FileKey, check_key, file_key, hour_of, parse_file_key

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
