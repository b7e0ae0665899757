"""The file of `siltstone users export` and `import`."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from runtime.errors import BadInputError
from security.scram import Mechanism, credential_of
from siltstone.cli.access.user_file import changes_of, lines_of, read_text, write_new

USERS = {
    "ann": {each: credential_of(each, "secret", salt=b"salt of ann") for each in Mechanism},
    "Zoë\n": {Mechanism.SCRAM_SHA_512: credential_of(Mechanism.SCRAM_SHA_512, "ö", salt=b"\0", iterations=8_192)},
}


def test_what_is_written_is_read_again() -> None:
    text = lines_of(USERS)
    assert len(text.splitlines()) == 3
    assert "secret" not in text
    assert {(each.name, each.mechanism): each.credential for each in changes_of(text, "users.jsonl")} == {
        (name, mechanism): found for name, user in USERS.items() for mechanism, found in user.items()
    }
    assert changes_of("", "users.jsonl") == []


@pytest.mark.parametrize(
    "changed",
    [
        {"mechanism": "PLAIN"},
        {"iterations": 4_095},
        {"iterations": True},
        {"iterations": "4096"},
        {"salt": ""},
        {"salt": "*"},
        {"stored_key": "AAAA"},
        {"server_key": 7},
        {"user": ""},
        {"user": 7},
        {"user": "a\0"},
        {"user": "\ud800"},
        {"password": "secret"},
    ],
)
def test_a_line_that_is_no_credential_is_refused_without_being_shown(changed: dict[str, object]) -> None:
    first, _, last = lines_of(USERS).splitlines()
    fields = json.loads(last)
    with pytest.raises(BadInputError, match=r"users\.jsonl, line 2, is no credential") as caught:
        changes_of(f"{first}\n{json.dumps({**fields, **changed})}\n", "users.jsonl")
    assert fields["stored_key"] not in str(caught.value)


@pytest.mark.parametrize("line", ["[]", "7", "{}", '{"user": "ann"', "[" * 10_000])
def test_a_line_that_is_something_else_is_refused(line: str) -> None:
    with pytest.raises(BadInputError, match="line 1, is no credential"):
        changes_of(line, "users.jsonl")


def test_the_same_credential_twice_is_refused() -> None:
    text = lines_of(USERS)
    with pytest.raises(BadInputError, match="line 4: a second SCRAM-SHA-512 of user 'Zoë"):
        changes_of(text + text.splitlines()[0], "users.jsonl")


def test_the_file_is_new_and_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "users.jsonl"
    write_new(path, lines_of(USERS))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_text(path) == lines_of(USERS)
    with pytest.raises(BadInputError, match="is there already"):
        write_new(path, "")
    assert read_text(path) == lines_of(USERS)
    path.write_bytes(b"\xff")
    with pytest.raises(BadInputError, match="is not UTF-8"):
        read_text(path)
