"""Gives each client its rights, by the ACLs that this agent knows.

Modes: `off` judges nothing, `shadow` judges and tells the audit log but allows, `on` enforces. Super users come first:
no ACL denies them anything. Rights are kept on the connection until the ACLs change. Whether what is known still
counts is judged before any of this (`freshness.py`).

Above BUILD_ON_LOOP_MAX ACLs, a matcher is built on a thread. The old one judges meanwhile, and changes that come
meanwhile are made to both.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Set
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol, TypeAlias

from agents.request_context import ANONYMOUS, ClientConnection, current_request
from agents.security.audit import Audit
from agents.security.rights import UNLIMITED, JudgedRights, Rights
from runtime.errors import BadInputError
from security.acls.checks import canonical_host
from security.acls.matcher import Matcher
from security.acls.values import Acl

BUILD_ON_LOOP_MAX = 5_000
"""ACLs that are put in place within one turn of the event loop, in 30 ms at most."""

_NEXT_USER = re.compile(r"\s*,\s*User:")
"""Other commas are parts of a certificate's name, such as User:CN=ann,O=Siltstone."""


@dataclass(eq=False)
class _Load:
    """A call of `load` that is under way."""

    changes: list[tuple[Collection[Acl], Collection[Acl]]] = field(default_factory=list[Any])
    """Added and removed since the call, in order."""


class AclMode(Enum):
    OFF = "off"
    SHADOW = "shadow"
    ON = "on"


Hears: TypeAlias = Callable[[Collection[Acl], Collection[Acl]], Awaitable[None]]


class KnownAcls(Protocol):
    """The ACLs of the store, as this agent has heard of them (`agents/security/known.py`)."""

    on_acls: list[Hears]
    """Called with the ACLs that came and those that went, after `acls` has changed."""

    @property
    def acls(self) -> Set[Acl]: ...


class NoAcls:
    def __init__(self) -> None:
        self.on_acls: list[Hears] = []
        self.acls: Set[Acl] = frozenset()


class Authorizer:
    def __init__(
        self,
        mode: AclMode = AclMode.OFF,
        *,
        known: KnownAcls | None = None,
        super_users: Collection[str] = (),
        allow_everyone: bool = False,
        audit: Audit | None = None,
    ) -> None:
        self.on = mode is not AclMode.OFF
        """False: nothing is judged, and there are no ACLs."""
        self.known: KnownAcls = known or NoAcls()
        self._enforces = mode is AclMode.ON
        self._super_users = frozenset(super_users)
        self._allow_everyone = allow_everyone
        self.audit = audit or Audit()
        self._matcher = self._built(())
        self._loads: list[_Load] = []
        self._building = asyncio.Lock()

    # ---- what is known

    async def start(self) -> None:
        """Take in what is known, and what comes after it. Nobody is judged before."""
        if self.on:
            self.known.on_acls.append(self.hear)
            await self.load(self.known.acls)

    async def hear(self, came: Collection[Acl], went: Collection[Acl]) -> None:
        """When it returns, clients are judged by the change."""
        if len(came) + len(went) <= BUILD_ON_LOOP_MAX:
            self.change(added=came, removed=went)
        else:
            await self.load(self.known.acls)

    def close(self) -> None:
        if self.hear in self.known.on_acls:
            self.known.on_acls.remove(self.hear)
        self.audit.close()

    def load(self, acls: Collection[Acl]) -> Coroutine[None, None, None]:
        """These are all ACLs there are, at the moment of the call: what comes before the end is added to them."""
        load = _Load()
        self._loads.append(load)
        return self._load(list(acls), load)

    async def _load(self, acls: Collection[Acl], load: _Load) -> None:
        try:
            async with self._building:  # one after the other: the last call wins
                if len(acls) <= BUILD_ON_LOOP_MAX:
                    matcher = self._built(acls)
                else:
                    matcher = await asyncio.to_thread(self._built, acls)
                for added, removed in load.changes:
                    _change(matcher, added, removed)
                self._matcher = matcher
        finally:
            self._loads.remove(load)

    def change(self, *, added: Collection[Acl] = (), removed: Collection[Acl] = ()) -> None:
        """All of it within this call: for very many, `load` all."""
        for load in self._loads:
            load.changes.append((added, removed))
        _change(self._matcher, added, removed)

    def _built(self, acls: Collection[Acl]) -> Matcher:
        return Matcher(acls, allow_everyone=self._allow_everyone)

    # ---- what a client may do

    def rights(self) -> Rights:
        """Those of the client whose request is being worked on."""
        if not self.on:
            return UNLIMITED
        request = current_request()
        # Outside of a request nobody has proved anything.
        return self.rights_of(ClientConnection(0, "?") if request is None else request.client)

    def rights_of(self, client: ClientConnection) -> Rights:
        if not self.on:
            return UNLIMITED
        principal, matcher = client.principal, self._matcher
        kept = client.rights
        if kept is not None and kept.by(matcher, principal):
            return kept
        rights = client.rights = JudgedRights(
            matcher,
            self.audit,
            principal,
            canonical_host(client.host.strip("[]")),
            everything=principal in self._super_users,
            shadow=not self._enforces,
        )
        return rights

    def binds(self, client: ClientConnection) -> bool:
        """The store can take something from the client: a right, or the password of a user who is deleted."""
        return self._enforces and (client.has_password or client.principal not in self._super_users)


def _change(matcher: Matcher, added: Iterable[Acl], removed: Iterable[Acl]) -> None:
    for acl in removed:
        matcher.remove(acl)
    for acl in added:
        matcher.add(acl)


def mode_of(text: str, *, authenticates: bool) -> AclMode:
    """The setting `acl.mode`. `auto`: `on` if some listener learns who its clients are."""
    if text != "auto":
        return AclMode(text)
    return AclMode.ON if authenticates else AclMode.OFF


def super_users_of(text: str) -> frozenset[str]:
    """The setting `super.users`. Raises BadInputError."""
    users = [each.strip() for each in text.split(";") if each.strip()]
    for user in users:
        if _NEXT_USER.search(user):
            raise BadInputError(
                f"super.users: {user!r} names more than one principal",
                remedy=f"separate principals by ; and not by a comma: {_NEXT_USER.sub(';User:', user)}",
            )
        kind, _, name = user.partition(":")
        if not (kind and name) or user == ANONYMOUS:
            raise BadInputError(
                f"super.users: {user!r} is no principal that a client can prove to be",
                remedy="write TYPE:NAME;TYPE:NAME, such as User:admin;User:ops",
            )
    return frozenset(users)
