"""The calls about users, ACLs and quotas.

Agents hold all of it in memory: they load it before they listen, and follow its changes with the tail. So no byte of a
client that has not proved itself causes a query.

Salts, keys and secrets never leave the two tables that hold them and the memory of agents: no reader's role may see
them, no backup carries them, and no change's `detail` names more than the user.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from metadata.contract.leases import AgentInfo, WriterLease
from runtime.errors import BadInputError
from security.acls.values import Acl, AclFilter
from security.quotas.values import QuotaEntity
from security.scram import Mechanism, ScramCredential


class OlderProgramsAtWorkError(BadInputError):
    """Programs of releases that know nothing of users, ACLs and quotas are at work. Nothing was changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityState:
    """Everything, as of one change: later changes have higher ids."""

    change_id: int
    users: Mapping[str, Mapping[Mechanism, ScramCredential]] = field(repr=False)
    acls: Sequence[Acl]
    quotas: Mapping[QuotaEntity, Mapping[str, float]]
    cluster_secret: bytes = field(repr=False)
    """32 random bytes, the same for every agent of the cluster, made once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserChange:
    """Sets one credential of a user, or removes it (`credential` is None)."""

    name: str
    mechanism: Mechanism
    credential: ScramCredential | None


class SecurityMetadata(Protocol):
    """Every method may raise `MetadataUnavailableError`; its own docstring names its other errors.

    A method that changes something returns the id of its last change; agents whose cursor has reached it have applied
    it. If nothing had to change, it is the id of the last change of users, ACLs or quotas, so that a caller who
    repeats a call waits for the agents as the first one did. Such a method hints to the followers by itself. It may
    raise OlderProgramsAtWorkError; once it succeeded, programs of older releases can work no more.
    """

    async def exclude_older_programs(self) -> None:
        """From now on no program works that knows nothing of ACLs: it would let everybody in. Raises
        OlderProgramsAtWorkError."""
        ...

    async def security(self) -> SecurityState: ...

    async def users(self, names: Sequence[str]) -> Mapping[str, Mapping[Mechanism, ScramCredential]]:
        """The credentials of these users; a user without any is absent."""
        ...

    async def alter_users(self, changes: Sequence[UserChange]) -> int:
        """All or nothing. The removal of a credential that does not exist changes nothing and is no error."""
        ...

    async def create_acls(self, acls: Sequence[Acl]) -> int:
        """All or nothing. An ACL that exists already is no error (Kafka's rule)."""
        ...

    async def delete_acls(self, filters: Sequence[AclFilter]) -> tuple[int, Sequence[Sequence[Acl]]]:
        """The change, and for each filter the ACLs that it deleted; one that matches two filters is named by both."""
        ...

    async def alter_quotas(self, changes: Mapping[QuotaEntity, Mapping[str, float | None]]) -> int:
        """All or nothing. None removes a quota; the removal of one that does not exist is no error."""
        ...

    # -- who knows of a change

    async def report_seen(self, lease: WriterLease, change_id: int) -> None:
        """The agent has applied every change of users and ACLs up to this id. Counts for this lease alone; a lease that
        ended is no error."""
        ...

    async def agents_behind(self, change_id: int) -> Sequence[AgentInfo]:
        """The agents with a running lease, draining ones too, that have not reported this change yet; and those whose
        address belonged to a process that gave no lease back, until that lease would have ended: it may run, cut off
        from the store, and go by what it knew."""
        ...

    # -- what clients ask of each agent

    async def exchange_demands(self, lease: WriterLease, demands: Mapping[int, float]) -> Sequence[Mapping[int, float]]:
        """Report what clients ask of this agent, in place of its last report, and read the reports of the others.

        By number of the share (`security/quotas/sharing.py`), REPORTED_MAX at most. One mapping for each other agent
        with a running lease, draining ones too, by writer id; empty if it has reported nothing under this lease, or
        nothing for as long as a lease. Agents of programs that do not report are left out. With a lease that ended
        nothing is reported, which is no error.
        """
        ...
