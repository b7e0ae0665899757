"""No part of a password is printed: not in errors, remedies, checks or tracebacks, however the URL is written."""

from __future__ import annotations

import itertools
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
from click.testing import CliRunner

from runtime.passwords import masked, place_in
from siltstone.cli import main

PASSWORDS = ("p@zq:w/rd%41", "p%40zq%3Aw%2Frd%2541", "p@zq", "p@zq/w", "w/rd", "rd%41", "zq:w/rd", "p#zq w/rd?x=zq:w")
PARTS = ("zq", "w/rd", "rd%41", "rdA", "w%2F", "%2541")
DATABASES = (
    "postgresql://user:{}@127.0.0.1:1/db",
    "postgres://user:{}@127.0.0.1:abc/db",
    "postgresql:/user:{}@127.0.0.1/db",
    "user:{}@127.0.0.1/db",
    "mysql://user:{}@127.0.0.1/db",
    "postgresql://127.0.0.1:1/db?user=u&password={}",
    "postgresql+asyncpg://user:{}@[::1/db",
    "host=127.0.0.1 password={}",
)
STORES = (
    "s3://key:{}@bucket/p",
    "s3://bucket/p?endpoint=http://key:{}@127.0.0.1:1",
    "s3://bucket/p?secret_access_key={}",
    "https://key:{}@bucket",
)


def assert_silent(*words: str, environ: Mapping[str, str] = MappingProxyType({})) -> None:
    ran = CliRunner().invoke(main, words, env=environ)
    raised = "" if ran.exc_info is None else "".join(traceback.format_exception(*ran.exc_info))
    assert ran.exit_code, (words, ran.output)
    # the words of the command line are in no frame of the traceback, but in what it says
    for part in PARTS:
        assert part not in ran.output + raised, (words, part, ran.output)


@pytest.mark.parametrize("form", DATABASES)
def test_a_database_that_cannot_be_reached_or_read_is_named_without_its_password(form: str, tmp_path: Path) -> None:
    (tmp_path / "objects").mkdir()
    objects = ("--object-store", (tmp_path / "objects").as_uri())
    for password in PASSWORDS:
        url = form.format(password)
        for environ in ({}, {"SILTSTONE_TRACEBACK": "1"}):
            assert_silent("topics", "explain", "t", "--metadata", url, environ=environ)
            assert_silent("migrate", "--metadata", url, environ=environ)
            assert_silent("fsck", "--metadata", url, *objects, environ=environ)
        assert_silent("doctor", "--metadata", url)
        assert_silent("doctor", environ={"SILTSTONE_METADATA_URL": url})
        assert_silent("agent", "--set", f"metadata.url={url}", "--set", f"object.store.url={objects[1]}")
        assert_silent("topics", "list", "--bootstrap", url)
        assert_silent("tables", "export", "t", "--to", "iceberg:a.b", "--catalog", url, "--warehouse", "/x", *objects)


@pytest.mark.parametrize("form", STORES)
def test_a_store_that_cannot_be_read_is_named_without_its_secret(form: str) -> None:
    metadata = ("--metadata", "postgresql://u@127.0.0.1:1/db")
    for password in PASSWORDS:
        url = form.format(password)
        assert_silent("doctor", *metadata, "--object-store", url)
        assert_silent("fsck", *metadata, "--object-store", url)
        assert_silent("agent", "--set", "metadata.url=memory://", "--set", f"object.store.url={url}")
        assert_silent("tables", "export", "t", "--to", f"parquet:{url}", *metadata)


def test_urls_with_passwords_are_masked_in_any_text() -> None:
    for password, (before, after) in itertools.product(PASSWORDS[:-1], (("", ""), ('at "', '" it fails'))):
        said = masked(f"{before}postgresql://user:{password}@h:1/db{after} and postgresql://h/db?password={password}")
        assert not [part for part in PARTS if part in said], said
        assert "postgresql://user:***@h:1/db" in said
    assert masked("http://127.0.0.1:9100/metrics and a@b") == "http://127.0.0.1:9100/metrics and a@b"


def test_a_host_is_shown_only_where_it_can_be_no_part_of_a_password() -> None:
    assert place_in("postgresql://u:p%40ss@db.example/x", port=5432) == "db.example:5432/x"
    assert place_in("postgresql://u:p@ss/word@db.example/x", port=5432) == "an address that cannot be read"


def test_a_password_on_the_command_line_is_warned_of_once_and_one_from_elsewhere_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "postgresql://user:canary@127.0.0.1:1/db"
    config = tmp_path / "agent.toml"
    config.write_text(f'metadata.url = "{url}"\n')

    def warnings(*words: str, **environ: str) -> list[str]:
        monkeypatch.setattr(sys, "orig_argv", ["siltstone", *words])
        ran = CliRunner().invoke(main, words, env=environ)
        assert "canary" not in ran.output
        return [line for line in ran.stderr.splitlines() if line.startswith("warning: ")]

    for words in (
        ("migrate", "--metadata", url),
        ("fsck", "--metadata", url),
        ("agent", "--set", f"metadata.url={url}"),
        ("doctor", "--metadata", "postgresql://127.0.0.1:1/db?user=u&password=canary"),
    ):
        (warning,) = warnings(*words)
        assert "every user of this machine can read it" in warning
        assert "SILTSTONE_METADATA_URL" in warning and "PGPASSFILE" in warning
    (warning,) = warnings("drill", "--scratch", url, "--metadata", "postgresql://user@127.0.0.1:1/db")
    assert "holds a password (--scratch)" in warning and "?password_file=" in warning
    assert warnings("fsck", "--metadata", "postgresql://user@127.0.0.1:1/db") == []
    assert warnings("fsck", SILTSTONE_METADATA_URL=url) == []
    assert warnings("fsck", "--config", str(config)) == []
