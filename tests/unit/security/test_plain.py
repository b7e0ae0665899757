from __future__ import annotations

import pytest

from security.sasl import plain
from security.sasl.errors import AuthenticationFailedError


def test_what_a_client_writes_is_what_the_server_reads() -> None:
    for name, password in (("ann", "secret"), ("ünï", "п"), ("n" * 1024, "p" * 4096)):
        claim = plain.read(plain.write(name, password))
        assert (claim.name, claim.password) == (name, password)
    assert plain.read(b"ann\0ann\0secret").name == "ann"


def test_other_messages_are_refused_and_no_error_or_repr_shows_the_password() -> None:
    for token in (
        b"",
        b"ann\0hunter2",
        b"\0ann\0hunter2\0",
        b"root\0ann\0hunter2",
        b"\0\0hunter2",
        b"\0ann\0",
        b"\0" + b"n" * 1025 + b"\0hunter2",
        b"\0ann\0hunter2" + b"p" * 4096,
        b"\0ann\0hunter2\xff",
        b"\0" * 70_000,
    ):
        with pytest.raises(AuthenticationFailedError) as caught:
            plain.read(token)
        assert "hunter2" not in str(caught.value) and caught.value.__cause__ is None
    assert "hunter2" not in repr(plain.read(b"\0ann\0hunter2"))
