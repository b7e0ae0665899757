"""All that this agent knows of users, ACLs and quotas: every one, in memory, as fresh as the tail.

The follower feeds it. Together with each snapshot everything is read again; each answer of the tail brings the changes
since, which are taken in before the follower's cursor moves. So whoever waits for `Follower.catch_up` finds here what
was committed before, and a gap in what the follower reads is none here. Nothing else reads the store: no byte of a
client that has not proved itself causes a query.

A change of users only names them; their credentials are read then. If that fails, the whole answer of the tail comes
again, and what is here already stays.

`heard_ms` and `stale_ms` tell how old all of it is; what follows from that is decided elsewhere
(`agents/security/freshness.py`, `session.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence, Set

from agents.yielding import LOAD_SLICE, Slices
from metadata.contract.leases import WriterLease
from metadata.contract.tail import Change, ChangeKind
from metadata.security.contract import SecurityMetadata
from metadata.security.details import KINDS, acls_of, names_of, quotas_of
from runtime.errors import BugError
from runtime.logging import get_logger
from runtime.runtime import Runtime
from security.acls.values import Acl
from security.quotas.values import QuotaEntity
from security.scram import Mechanism, ScramCredential

_log = get_logger(__name__)

EVERYWHERE_POLL_MS = 50.0
"""Pause between two looks at who has not reported a change yet."""


class KnownSecurity:
    def __init__(self, *, metadata: SecurityMetadata, lease: Callable[[], WriterLease], runtime: Runtime) -> None:
        """`lease`: the present one, under which this agent reports. Whoever wants to hear of changes reads what is
        known first: the lists of calls below bring only what comes later."""
        self._metadata = metadata
        self._lease = lease
        self._clock = runtime.clock
        self._users: dict[str, Mapping[Mechanism, ScramCredential]] = {}
        self._acls: set[Acl] = set()
        self._quotas: dict[QuotaEntity, Mapping[str, float]] = {}
        self._cluster_secret = b""
        self._heard_ms = float("-inf")
        self._reported: tuple[WriterLease, int] | None = None
        self._reporting: asyncio.Task[None] | None = None
        self.change_id = -1
        """Every change of users, ACLs and quotas up to this one is taken in. -1: nothing was loaded yet."""
        self._applied_id = -1
        """Up to this one, the calls of `on_acls` are over as well."""
        self.generation = 0
        """Grows whenever `acls` changes: decisions that were made before count no more."""
        self.on_users: list[Callable[[Collection[str]], None]] = []
        """Called with the names of users whose credentials were changed or removed, after `users` has changed."""
        self.on_acls: list[Callable[[Collection[Acl], Collection[Acl]], Awaitable[None]]] = []
        """Called with the ACLs that came and those that went, after `acls` has changed. The change counts as taken in,
        here and for other agents, when the calls are over."""
        self.on_quotas: list[Callable[[], None]] = []
        """Called after `quotas` has changed."""

    @property
    def users(self) -> Mapping[str, Mapping[Mechanism, ScramCredential]]:
        return self._users

    @property
    def acls(self) -> Set[Acl]:
        """Changed in place: copy it before you yield."""
        return self._acls

    @property
    def quotas(self) -> Mapping[QuotaEntity, Mapping[str, float]]:
        return self._quotas

    @property
    def cluster_secret(self) -> bytes:
        """The same for every agent. Raises BugError before the first load."""
        if not self._cluster_secret:
            raise BugError("the cluster secret is not loaded yet")
        return self._cluster_secret

    @property
    def heard_ms(self) -> float:
        """When the last read of the store whose answer is taken in was sent."""
        return self._heard_ms

    @property
    def stale_ms(self) -> float:
        """How old what is known is, at the most. Infinite before the first load."""
        return self._clock.monotonic_ms() - self._heard_ms

    # ---- fed by the follower

    async def load(self) -> None:
        """Read everything again. Raises MetadataUnavailableError."""
        state = await self._metadata.security()
        acls, slices = set[Acl](), Slices()
        for first in range(0, len(state.acls), LOAD_SLICE):
            some = state.acls[first : first + LOAD_SLICE]
            acls.update(some)
            await slices.took(len(some))
        came, went = await _without(acls, self._acls), await _without(self._acls, acls)
        # Nothing may yield from here on, until all of it has changed.
        names = {*self._users, *state.users}
        changed = [name for name in names if self._users.get(name) != state.users.get(name)]
        quotas_differ = self._quotas != state.quotas
        self._users, self._acls, self._quotas = dict(state.users), acls, dict(state.quotas)
        self._cluster_secret = state.cluster_secret
        self.change_id = state.change_id
        await self._tell(changed, came, went, quotas_differ)

    async def take_in(self, changes: Iterable[Change]) -> None:
        """Take in the changes of an answer of the tail. May be called with changes that are known already. Raises
        MetadataUnavailableError; then they must come again."""
        new = [change for change in changes if change.kind in KINDS and change.change_id > self.change_id]
        if not new:
            return
        names = [name for change in new if change.kind is ChangeKind.USERS_CHANGED for name in names_of(change.detail)]
        # First, because it may fail. The answer may be newer than the change; so is what the next change brings.
        users: Mapping[str, Mapping[Mechanism, ScramCredential]] = {}
        if names:
            users = await self._metadata.users(names)
        came, went = dict[Acl, None](), dict[Acl, None]()
        quotas = dict(self._quotas)
        slices = Slices()
        for change in new:
            if change.kind is ChangeKind.ACLS_CHANGED:
                _gather(change, came, went)
                await slices.took(len(change.detail["added"]) + len(change.detail["removed"]))
            if change.kind is ChangeKind.QUOTAS_CHANGED:
                for entity, values in quotas_of(change.detail).items():
                    quotas[entity] = _changed(quotas.get(entity, {}), values)
                    if not quotas[entity]:
                        del quotas[entity]
        # Nothing may yield from here on, until all has changed: whoever looks sees all of an answer or nothing of it.
        for name in names:
            self._users.pop(name, None)
        self._users.update(users)
        came = {acl: None for acl in came if acl not in self._acls}
        went = {acl: None for acl in went if acl in self._acls}
        self._acls.difference_update(went)
        self._acls.update(came)
        quotas_differ = self._quotas != quotas
        self._quotas = quotas
        self.change_id = new[-1].change_id
        await self._tell(names, came, went, quotas_differ)

    def heard(self, sent_ms: float) -> None:
        """The store has answered a read that was sent then, and all of the answer is taken in."""
        self._heard_ms = max(sent_ms, self._heard_ms)
        self._report()

    # ---- who knows of a change

    async def applied_everywhere(self, change_id: int, timeout_ms: float) -> bool:
        """Wait until every agent with a running lease has taken in this change. False: some have not, by now.

        An agent that cannot read the store cannot keep its lease either, so the wait ends after a lease at the most,
        if the store answers us. Raises MetadataUnavailableError.
        """
        ends_ms = self._clock.monotonic_ms() + timeout_ms
        while behind := await self._metadata.agents_behind(change_id):
            if self._clock.monotonic_ms() >= ends_ms:
                _log.warning(
                    "agents have not taken in a change of users or ACLs yet",
                    change_id=change_id,
                    node_ids=[agent.writer_id for agent in behind],
                )
                return False
            await self._clock.sleep_ms(EVERYWHERE_POLL_MS)
        return True

    async def stop(self) -> None:
        if self._reporting is not None:
            self._reporting.cancel()
            await asyncio.gather(self._reporting, return_exceptions=True)

    # ---- inside

    async def _tell(
        self, names: Collection[str], came: Collection[Acl], went: Collection[Acl], quotas_differ: bool
    ) -> None:
        self.generation += 1 if came or went else 0
        if names:
            for call in self.on_users:
                call(names)
        if quotas_differ:
            for call in self.on_quotas:
                call()
        if came or went:
            for take in self.on_acls:
                await take(came, went)
        self._applied_id = self.change_id

    def _report(self) -> None:
        """Again under each new lease. A report that fails is made again after the next poll."""
        if self._reported == (self._lease(), self._applied_id) or (self._reporting and not self._reporting.done()):
            return
        self._reporting = asyncio.create_task(self._report_seen(), name="security report")

    async def _report_seen(self) -> None:
        while self._reported != (now := (self._lease(), self._applied_id)):
            try:
                await self._metadata.report_seen(*now)
            except Exception as error:
                _log.debug("others not told how far we are; after the next poll", error=str(error))
                return
            self._reported = now


def _gather(change: Change, came: dict[Acl, None], went: dict[Acl, None]) -> None:
    """Adds what a change does to what the changes before it do: the last word about an ACL counts."""
    added, removed = acls_of(change.detail)
    for acl in removed:
        came.pop(acl, None)
        went[acl] = None
    for acl in added:
        went.pop(acl, None)
        came[acl] = None


def _changed(present: Mapping[str, float], values: Mapping[str, float | None]) -> Mapping[str, float]:
    merged: dict[str, float | None] = {**present, **values}
    return {key: value for key, value in merged.items() if value is not None}


async def _without(acls: set[Acl], others: set[Acl]) -> Sequence[Acl]:
    """The difference of two sets, in slices."""
    found: list[Acl] = []
    slices = Slices()
    for acl in acls:
        if acl not in others:
            found.append(acl)
        await slices.took(1)
    return found
