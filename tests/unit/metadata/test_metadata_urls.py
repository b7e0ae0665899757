"""URLs lead to the right service, and a database that looks older is recognised."""

from __future__ import annotations

from dataclasses import replace

import pytest

from metadata.contract.errors import MetadataUnavailableError
from metadata.memory.store import MemoryMetadata
from metadata.postgres.connection import Seen, driver_url, went_back
from metadata.postgres.store import PostgresMetadata
from metadata.urls import MetadataUrlError, open_metadata
from runtime.errors import SiltstoneError

BEFORE = Seen(system_identifier=7, timeline=3, cluster_id="c", file_id=90)


async def test_a_url_says_which_store_it_is() -> None:
    assert isinstance(open_metadata("memory://"), MemoryMetadata)
    assert isinstance(open_metadata("postgresql://siltstone@db:5432/siltstone"), PostgresMetadata)
    assert isinstance(open_metadata("postgresql+asyncpg://siltstone@db/siltstone"), PostgresMetadata)


@pytest.mark.parametrize("url", ["", "mysql://db/x", "memory", "memory://shared", "db:5432/siltstone"])
def test_other_urls_are_refused_with_what_to_write(url: str) -> None:
    with pytest.raises(MetadataUrlError, match="memory://"):
        open_metadata(url)


def test_a_url_without_a_scheme_is_refused_without_quoting_its_password() -> None:
    for refused in (open_metadata, driver_url):
        with pytest.raises(SiltstoneError) as error:
            refused("siltstone:hunter2@db/siltstone")
        assert "hunter2" not in str(error.value) and "postgresql://" in str(error.value)


def test_the_driver_gets_a_plain_postgres_url() -> None:
    assert driver_url("postgresql+asyncpg://u:p@h:1/d?x=y") == "postgresql://u:p@h:1/d?x=y"
    with pytest.raises(MetadataUnavailableError):
        driver_url("mysql://h/d")


@pytest.mark.parametrize(
    "now",
    [BEFORE, replace(BEFORE, file_id=91), replace(BEFORE, timeline=4)],
    ids=["the same", "more files", "a promoted standby that has everything"],
)
def test_a_later_state_of_the_same_database_is_fine(now: Seen) -> None:
    assert went_back(BEFORE, now, 90) == ""


@pytest.mark.parametrize(
    ("now", "why"),
    [
        (replace(BEFORE, system_identifier=8), "system identifier"),
        (replace(BEFORE, cluster_id="d"), "cluster id"),
        (replace(BEFORE, timeline=2), "timeline"),
        (replace(BEFORE, timeline=4, file_id=89), "file 90"),
    ],
)
def test_an_earlier_state_or_another_database_is_told_apart(now: Seen, why: str) -> None:
    assert why in went_back(BEFORE, now, 90)


def test_the_first_look_has_nothing_to_compare_with() -> None:
    assert went_back(Seen(), BEFORE, 0) == ""
