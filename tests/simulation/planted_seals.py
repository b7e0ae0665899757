"""Bugs planted in the seal rule."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from agents.write.budget import EarlyBudget


@contextmanager
def takes_no_tokens() -> Iterator[None]:
    """An early seal is not paid for."""
    with patch.object(EarlyBudget, "spend", lambda *_: None):
        yield


@contextmanager
def fills_the_bucket_twice() -> Iterator[None]:
    """Tokens come at twice the rate."""
    rate = EarlyBudget.rate.fget
    assert rate is not None
    with patch.object(EarlyBudget, "rate", property(lambda self: 2 * rate(self))):
        yield


@contextmanager
def takes_a_trickle_for_blocked() -> Iterator[None]:
    """A client that thinks between an answer and its next request is taken for one that waits for us."""
    with patch("agents.sender.RETURN_MS", 5_000.0):
        yield


@contextmanager
def seals_early_in_a_stall() -> Iterator[None]:
    """The write stall does not lower the rate of early seals."""

    def all_of_it(*_: Any) -> float:
        return 1.0

    with patch("agents.agent.share_of", all_of_it):
        yield


@contextmanager
def never_seals_early() -> Iterator[None]:
    """Clients that wait for us wait for the linger."""
    with patch.object(EarlyBudget, "is_off", property(lambda _: True)):
        yield
