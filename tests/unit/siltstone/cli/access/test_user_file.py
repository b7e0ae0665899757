"""The file of `siltstone users export`, which may be a terminal."""

from __future__ import annotations

from security.scram import Mechanism, credential_of
from siltstone.cli.access.user_file import changes_of, lines_of


def test_names_that_would_steer_a_terminal_are_escaped_and_come_back() -> None:
    mechanism = Mechanism.SCRAM_SHA_256
    credential = credential_of(mechanism, "a password", salt=b"s" * 16)
    names = ["a\x1b[2J", "b\x7f", "c\x9b2J", "d\u202e", "jörg", "𝄞"]
    text = lines_of({name: {mechanism: credential} for name in names})
    assert all(line.isascii() and line.isprintable() for line in text.splitlines())
    assert [(each.name, each.credential) for each in changes_of(text, "-")] == [(name, credential) for name in names]
