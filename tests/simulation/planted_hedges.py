"""Bugs planted in second requests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from storage.wrappers.hedge_rule import HedgeRule
from storage.wrappers.hedged import Hedged


@contextmanager
def hedges_another_range() -> Iterator[None]:
    """The second GET asks for a later part of the object, and its answer is taken."""

    async def get_range(self: Any, key: str, start: int, length: int) -> bytes:
        starts = iter((start, start + 1))
        return await self._gets.send(lambda: self._inner.get_range(key, next(starts), length), length)

    with patch.object(Hedged, "get_range", get_range):
        yield


@contextmanager
def hedges_without_a_bound() -> Iterator[None]:
    """Every late request gets a second one, however many are late."""
    with patch.object(HedgeRule, "take", lambda *_: True):
        yield
