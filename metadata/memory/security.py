"""Users, ACLs and quotas in the memory store. Every method is atomic: it never waits."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from metadata.contract.leases import LEASE_MS, AgentInfo, WriterLease
from metadata.contract.tail import ChangeKind
from metadata.memory.tables import DemandReport, MemoryDatabase
from metadata.rules.jobs import holds
from metadata.security import details
from metadata.security.contract import SecurityState, UserChange
from metadata.security.demands import FORGOTTEN_AFTER_MS, decode_demands, encode_demands
from runtime.clock import Clock
from runtime.ids import IdSource
from security.acls.values import Acl, AclFilter
from security.quotas.values import QuotaEntity
from security.scram import Mechanism, ScramCredential


class MemorySecurity:
    """The memory implementation of `SecurityMetadata`."""

    def __init__(self, database: MemoryDatabase, clock: Clock, ids: IdSource) -> None:
        self.database = database
        self._clock = clock
        self._ids = ids

    async def exclude_older_programs(self) -> None:
        """All programs on one database in memory are one release."""

    async def security(self) -> SecurityState:
        db = self.database
        if details.CLUSTER_SECRET not in db.secrets:
            drawn = b"".join(self._ids.uuid4().bytes for _ in range(3))
            db.secrets[details.CLUSTER_SECRET] = hashlib.sha256(drawn).digest()
        return SecurityState(
            change_id=db.next_change_id - 1,
            users={name: dict(credentials) for name, credentials in db.users.items()},
            acls=list(db.acls),
            quotas={entity: dict(values) for entity, values in db.quotas.items()},
            cluster_secret=db.secrets[details.CLUSTER_SECRET],
        )

    async def users(self, names: Sequence[str]) -> Mapping[str, Mapping[Mechanism, ScramCredential]]:
        users = self.database.users
        return {name: dict(users[name]) for name in names if name in users}

    async def alter_users(self, changes: Sequence[UserChange]) -> int:
        users, changed = self.database.users, set[str]()
        last = {(change.name, change.mechanism): change.credential for change in changes}
        for (name, mechanism), credential in last.items():
            if credential is not None:
                users.setdefault(name, {})[mechanism] = credential
                changed.add(name)
            elif mechanism in users.get(name, {}):
                del users[name][mechanism]
                changed.add(name)
                if not users[name]:
                    del users[name]
        return self._changed(ChangeKind.USERS_CHANGED, details.users_changed(sorted(changed)))

    async def create_acls(self, acls: Sequence[Acl]) -> int:
        known = self.database.acls
        added = [acl for acl in dict.fromkeys(acls) if acl not in known]
        known.update(dict.fromkeys(added))
        return self._changed(ChangeKind.ACLS_CHANGED, details.acls_changed(added=added))

    async def delete_acls(self, filters: Sequence[AclFilter]) -> tuple[int, Sequence[Sequence[Acl]]]:
        known = self.database.acls
        found = [sorted(filter(each.matches, known), key=details.acl_row) for each in filters]
        gone = list(dict.fromkeys(acl for acls in found for acl in acls))
        for acl in gone:
            del known[acl]
        return self._changed(ChangeKind.ACLS_CHANGED, details.acls_changed(removed=gone)), found

    async def alter_quotas(self, changes: Mapping[QuotaEntity, Mapping[str, float | None]]) -> int:
        quotas = self.database.quotas
        changed = {
            entity: {key: value for key, value in values.items() if value is not None or key in quotas.get(entity, {})}
            for entity, values in changes.items()
        }
        told = list(details.quotas_changed(changed))
        for entity, values in changed.items():
            present: dict[str, float | None] = {**quotas.get(entity, {}), **values}
            quotas[entity] = {key: value for key, value in present.items() if value is not None}
            if not quotas[entity]:
                del quotas[entity]
        return self._changed(ChangeKind.QUOTAS_CHANGED, told)

    # -- who knows of a change

    async def report_seen(self, lease: WriterLease, change_id: int) -> None:
        writer = self.database.writers.get(lease.writer_id)
        if writer is not None and writer.epoch == lease.epoch and writer.lease_until_ms is not None:
            writer.seen_change = max(writer.seen_change, change_id)

    async def agents_behind(self, change_id: int) -> Sequence[AgentInfo]:
        now_ms = self._clock.wall_ms()
        return [
            AgentInfo(writer_id=writer_id, epoch=writer.epoch, address=writer.address)
            for writer_id, writer in sorted(self.database.writers.items())
            if (holds(writer.lease_until_ms, now_ms, LEASE_MS) and writer.seen_change < change_id)
            or holds(writer.former_until_ms, now_ms, LEASE_MS)
        ]

    # -- what clients ask of each agent

    async def exchange_demands(self, lease: WriterLease, demands: Mapping[int, float]) -> Sequence[Mapping[int, float]]:
        db, now_ms, mine = self.database, self._clock.wall_ms(), lease.writer_id
        report = DemandReport(lease.epoch, now_ms + LEASE_MS, encode_demands(demands))
        others = {
            writer_id: writer
            for writer_id, writer in sorted(db.writers.items())
            if writer_id != mine and holds(writer.lease_until_ms, now_ms, LEASE_MS)
        }
        found: list[Mapping[int, float]] = []
        for writer_id, writer in others.items():
            told = db.demands.get(writer_id)
            counts = told is not None and told.epoch == writer.epoch and holds(told.until_ms, now_ms, LEASE_MS)
            found.append(decode_demands(told.demands) if told is not None and counts else {})
        oldest_ms = now_ms - FORGOTTEN_AFTER_MS
        kept = {id_: told for id_, told in db.demands.items() if id_ == mine or told.until_ms >= oldest_ms}
        writer = db.writers.get(mine)
        if writer is not None and writer.epoch == lease.epoch and writer.lease_until_ms is not None:
            kept[mine] = report
        db.demands = kept
        return found

    # -- inside

    def _changed(self, kind: ChangeKind, told: Iterable[Mapping[str, Any]]) -> int:
        db, change_id = self.database, None
        for detail in told:
            change_id = db.append_change(kind, None, detail, now_ms=self._clock.wall_ms())
        db.give_news()
        if change_id is not None:
            return change_id
        return max((change.change_id for change, _ in db.changes if change.kind in details.KINDS), default=0)
