"""The table of handlers and the table of APIs name the same keys."""

from __future__ import annotations

from agents.dispatch import HANDLERS
from wire.api import APIS


def test_every_api_that_is_advertised_has_a_handler_and_no_other() -> None:
    assert HANDLERS.keys() == APIS.keys()


def test_only_produce_is_pipelined() -> None:
    assert [key for key, handler in HANDLERS.items() if handler.pipelined] == [0]
