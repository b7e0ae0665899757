"""No error about a URL of the metadata shows a piece of its password, however the URL is written."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from metadata.postgres import connection
from metadata.urls import open_metadata
from runtime.errors import SiltstoneError
from runtime.passwords import HOW_TO_WRITE, UNREADABLE, holds_password, place_in
from tests.fixtures.chance import examples

PIECE = 3
URLS = (
    "postgresql://user:{}@host:5432/db",
    "postgresql+asyncpg://user:{}@host/db",
    "postgres://user:{}@[::1]:5432/db?sslmode=require",
    "postgresql:/user:{}@host:5432/db",
    "mysql://user:{}@host:5432/db",
    "user:{}@host:5432/db",
    "postgresql//user:{}@host/db",
)
passwords = st.text("Qz7Jx9!/:@%?#[]&= \\'\"^~+", min_size=4, max_size=16)


def shown(error: BaseException) -> str:
    """All that a person, or a log with tracebacks, sees of it."""
    said = ""
    each: BaseException | None = error
    while each is not None:
        said += f"{each} {getattr(each, 'remedy', '')}\n"
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)
    return said


async def refused(*_: object, **__: object) -> None:
    raise ConnectionRefusedError(111, "connection refused")


def errors_about(url: str) -> str:
    said = ""
    for attempt in (lambda: open_metadata(url), lambda: asyncio.run(connection.connect(url))):
        try:
            attempt()
        except SiltstoneError as error:
            said += shown(error)
    return said


@example("sec/ret")
@example("sec@ret/word")
@example("sec://ret")
@example("sec?ret#word")
@settings(max_examples=examples(400))
@given(passwords)
def test_no_piece_of_a_password_is_in_an_error(password: str) -> None:
    pieces = {password[at : at + PIECE] for at in range(len(password) - PIECE + 1)}
    with pytest.MonkeyPatch.context() as patched:
        # Nothing is dialled: the driver's parts that read the URL have their own test.
        patched.setattr(connection, "open_connection", refused)
        for form in URLS:
            said = errors_about(form.format(password)) + place_in(form.format(password))
            # what the messages say themselves, and the URL without the password
            own = errors_about(form.format("")) + place_in(form.format("")) + HOW_TO_WRITE + UNREADABLE
            assert not [piece for piece in pieces if piece in said and piece not in own], (form, said)


@settings(max_examples=examples(200))
@given(passwords)
def test_a_url_with_a_password_is_known_as_such(password: str) -> None:
    assume(not any(each.isspace() for each in password))
    assert holds_password(URLS[0].format(password))
    assert holds_password(f"postgresql://host/db?password={'x' + password.replace('&', '')}")
    assert not holds_password("postgresql://user@host:5432/db")
    assert not holds_password("memory://")
