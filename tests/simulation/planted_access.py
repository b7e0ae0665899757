"""Bugs planted in the taking away of rights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from agents.broker import Broker
from agents.security.freshness import Freshness
from agents.security.rights import JudgedRights


@contextmanager
def answers_before_others_know() -> Iterator[None]:
    """A change of ACLs is answered when the agent that was asked has taken it in."""

    async def here_alone(self: Any, change_id: int) -> None:
        await self.follower.catch_up()

    with patch.object(Broker, "taken_in_everywhere", here_alone):
        yield


@contextmanager
def judges_a_parked_fetch_once() -> Iterator[None]:
    """A fetch that waited is answered by the rights that it had when it came."""

    async def never(*_: Any) -> None:
        return

    with patch("agents.handlers.fetch._refuse_again", never):
        yield


@contextmanager
def keeps_rights_over_a_change() -> Iterator[None]:
    """The rights of a connection are found out once."""

    def by(self: Any, matcher: object, principal: str) -> bool:
        return self._matcher is matcher and self._principal == principal

    with patch.object(JudgedRights, "by", by):
        yield


@contextmanager
def judges_without_a_lease() -> Iterator[None]:
    """An agent goes on to judge by what it knew when its lease ran out, and changes did not wait for it."""
    with patch.object(Freshness, "is_fresh", lambda *_: True):
        yield
