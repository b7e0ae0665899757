"""The calls about users, ACLs and quotas, over Postgres.

Order of locks in a change: at its first time those of `older.py`; SECURITY_LOCK, by which changes of this kind come one
after another, so that none of them meets half of another; the lock of `changes`, last as everywhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, insert
from sqlalchemy.ext.asyncio import AsyncConnection

from metadata.contract.leases import LEASE_MS, AgentInfo, WriterLease
from metadata.contract.tail import ChangeKind
from metadata.postgres.connection import Database
from metadata.postgres.log.leases import AGENTS_QUERY, agent_info
from metadata.postgres.log.news import News
from metadata.postgres.rows import any_of, append_change, between_now_and, statement
from metadata.postgres.security.demands import exchange_demands
from metadata.postgres.security.older import exclude_older
from metadata.postgres.tables import ACLS, AGENTS, CHANGES, CLIENT_QUOTAS, CLUSTER, SCRAM_USERS, SECRETS, Utf8
from metadata.rules.jobs import LEASE_SLACK
from metadata.security import details
from metadata.security.contract import SecurityState, UserChange
from runtime.errors import BugError
from security.acls.values import WILDCARD, Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from security.quotas.values import QuotaEntity
from security.scram import Mechanism, ScramCredential

SECURITY_LOCK = 7_310_575_222

_LOCK = sa.text(f"SELECT pg_advisory_xact_lock({SECURITY_LOCK})")
_CHANGE_ID = sa.select(
    sa.func.greatest(sa.select(sa.func.max(CHANGES.c.change_id)).scalar_subquery(), CLUSTER.c.forgotten_change_id)
)
_LAST_OWN = sa.select(sa.func.coalesce(sa.func.max(CHANGES.c.change_id), 0)).where(
    any_of(CHANGES.c.kind, sorted(kind.value for kind in details.KINDS))
)
_ACL_COLUMNS = (
    ACLS.c.resource_type,
    ACLS.c.pattern_type,
    ACLS.c.resource_name,
    ACLS.c.principal,
    ACLS.c.host,
    ACLS.c.operation,
    ACLS.c.permission,
)
_ACLS = sa.select(*_ACL_COLUMNS)
_QUOTAS = sa.select(
    CLIENT_QUOTAS.c.user_name,
    CLIENT_QUOTAS.c.client_id,
    CLIENT_QUOTAS.c.ip,
    CLIENT_QUOTAS.c.defaults,
    CLIENT_QUOTAS.c.key,
    CLIENT_QUOTAS.c.value,
)
_USERS = sa.select(
    SCRAM_USERS.c.name,
    SCRAM_USERS.c.mechanism,
    SCRAM_USERS.c.salt,
    SCRAM_USERS.c.iterations,
    SCRAM_USERS.c.stored_key,
    SCRAM_USERS.c.server_key,
)
_BYTES, _SMALL = ARRAY(sa.LargeBinary), ARRAY(sa.SmallInteger)
_DELETE_USERS = statement(
    """DELETE FROM scram_users u USING unnest(:hashes, :mechanisms) AS gone (name_hash, mechanism)
    WHERE u.name_hash = gone.name_hash AND u.mechanism = gone.mechanism RETURNING u.name""",
    hashes=_BYTES,
    mechanisms=_SMALL,
).columns(name=Utf8)
_NEW_ACLS = [column.name for column in ACLS.columns]
_INSERT_ACLS = statement(
    f"""INSERT INTO acls ({", ".join(_NEW_ACLS)}) SELECT * FROM unnest(:{", :".join(_NEW_ACLS)})
    ON CONFLICT (acl_id) DO NOTHING RETURNING acl_id""",  # noqa: S608 - our own names
    **{column.name: ARRAY(column.type) for column in ACLS.columns},
)


class PostgresSecurity:
    """Implements `SecurityMetadata`."""

    def __init__(self, database: Database, news: News) -> None:
        self._database = database
        self._news = news

    async def exclude_older_programs(self) -> None:
        await self._database.write(exclude_older)

    async def security(self) -> SecurityState:
        async def work(connection: AsyncConnection) -> tuple[Any, ...]:
            change_id = (await connection.execute(_CHANGE_ID)).scalar_one()
            secret = await connection.scalar(sa.select(SECRETS.c.value).where(SECRETS.c.name == details.CLUSTER_SECRET))
            reads = [(await connection.execute(query)).all() for query in (_USERS, _ACLS, _QUOTAS)]
            return change_id, secret, *reads

        # Rows become values after the transaction has ended, and off the event loop: there may be 100,000 ACLs.
        change_id, secret, users, acls, quotas = await self._database.read(work, repeatable=True)
        if secret is None:
            raise BugError("the metadata database has no cluster secret")
        return SecurityState(
            change_id=change_id,
            users=_users(users),
            acls=await asyncio.to_thread(lambda: [_acl(row) for row in acls]),
            quotas=_quotas(quotas),
            cluster_secret=bytes(secret),
        )

    async def users(self, names: Sequence[str]) -> Mapping[str, Mapping[Mechanism, ScramCredential]]:
        query = _USERS.where(any_of(SCRAM_USERS.c.name_hash, sorted(map(details.user_hash, names))))

        async def work(connection: AsyncConnection) -> Sequence[Any]:
            return (await connection.execute(query)).all()

        return _users(await self._database.read(work))

    async def alter_users(self, changes: Sequence[UserChange]) -> int:
        last = {(change.name, change.mechanism): change.credential for change in changes}
        upserted: list[dict[str, Any]] = [
            {
                "name_hash": details.user_hash(name),
                "name": name,
                "mechanism": int(mechanism),
                "salt": credential.salt,
                "iterations": credential.iterations,
                "stored_key": credential.stored_key,
                "server_key": credential.server_key,
            }
            for (name, mechanism), credential in last.items()
            if credential is not None
        ]
        removed = [key for key, credential in last.items() if credential is None]

        async def work(connection: AsyncConnection) -> Iterable[Mapping[str, Any]]:
            names = {row["name"] for row in upserted}
            if upserted:
                made = insert(SCRAM_USERS)
                keys = ("salt", "iterations", "stored_key", "server_key")
                made = made.on_conflict_do_update(
                    index_elements=["name_hash", "mechanism"], set_={name: made.excluded[name] for name in keys}
                )
                await connection.execute(made, upserted)
            if removed:
                gone = {
                    "hashes": [details.user_hash(name) for name, _ in removed],
                    "mechanisms": [int(mechanism) for _, mechanism in removed],
                }
                names.update((await connection.execute(_DELETE_USERS, gone)).scalars())
            return details.users_changed(sorted(names))

        return await self._change(ChangeKind.USERS_CHANGED, work)

    async def create_acls(self, acls: Sequence[Acl]) -> int:
        by_id = {details.acl_id(acl): acl for acl in acls}
        rows = [details.acl_columns(acl) for acl in by_id.values()]
        columns = {name: [row[name] for row in rows] for name in _NEW_ACLS}

        async def work(connection: AsyncConnection) -> Iterable[Mapping[str, Any]]:
            new = set(map(bytes, (await connection.execute(_INSERT_ACLS, columns)).scalars()))
            return details.acls_changed(added=[acl for id_, acl in by_id.items() if id_ in new])

        return await self._change(ChangeKind.ACLS_CHANGED, work)

    async def delete_acls(self, filters: Sequence[AclFilter]) -> tuple[int, Sequence[Sequence[Acl]]]:
        found: list[Sequence[Acl]] = []

        async def work(connection: AsyncConnection) -> Iterable[Mapping[str, Any]]:
            found.clear()  # the transaction may run again
            for each in filters:
                rows = (await connection.execute(_ACLS.where(*_may_match(each)))).all()
                found.append(await asyncio.to_thread(_matching, rows, each))
            gone = {details.acl_id(acl): acl for acls in found for acl in acls}
            await connection.execute(sa.delete(ACLS).where(any_of(ACLS.c.acl_id, gone)))
            return await asyncio.to_thread(lambda: list(details.acls_changed(removed=list(gone.values()))))

        return await self._change(ChangeKind.ACLS_CHANGED, work), found

    async def alter_quotas(self, changes: Mapping[QuotaEntity, Mapping[str, float | None]]) -> int:
        asked = [
            (details.quota_id(entity, key), entity, key, value)
            for entity, values in changes.items()
            for key, value in values.items()
        ]
        upserted = [details.quota_columns(entity, key, value) for _, entity, key, value in asked if value is not None]

        async def work(connection: AsyncConnection) -> Iterable[Mapping[str, Any]]:
            if upserted:
                made = insert(CLIENT_QUOTAS)
                made = made.on_conflict_do_update(index_elements=["quota_id"], set_={"value": made.excluded.value})
                await connection.execute(made, upserted)
            removed = [id_ for id_, _, _, value in asked if value is None]
            removing = sa.delete(CLIENT_QUOTAS).where(any_of(CLIENT_QUOTAS.c.quota_id, removed))
            gone = set(map(bytes, (await connection.execute(removing.returning(CLIENT_QUOTAS.c.quota_id))).scalars()))
            changed: dict[QuotaEntity, dict[str, float | None]] = {}
            for id_, entity, key, value in asked:
                if value is not None or id_ in gone:
                    changed.setdefault(entity, {})[key] = value
            return details.quotas_changed(changed)

        return await self._change(ChangeKind.QUOTAS_CHANGED, work)

    # -- who knows of a change

    async def report_seen(self, lease: WriterLease, change_id: int) -> None:
        mine = (AGENTS.c.writer_id == lease.writer_id, AGENTS.c.epoch == lease.epoch)
        seen = sa.update(AGENTS).where(*mine, AGENTS.c.seen_change < change_id).values(seen_change=change_id)
        await self._database.write_one(seen.returning(AGENTS.c.writer_id))

    async def agents_behind(self, change_id: int) -> Sequence[AgentInfo]:
        behind = sa.and_(_ahead(AGENTS.c.lease_until_ms), AGENTS.c.seen_change < change_id)
        query = AGENTS_QUERY.where(sa.or_(behind, _ahead(AGENTS.c.former_until_ms)))

        async def work(connection: AsyncConnection) -> Sequence[AgentInfo]:
            return [agent_info(row) for row in await connection.execute(query)]

        return await self._database.read(work)

    # -- what clients ask of each agent

    async def exchange_demands(self, lease: WriterLease, demands: Mapping[int, float]) -> Sequence[Mapping[int, float]]:
        return await exchange_demands(self._database, lease, demands)

    # -- inside

    async def _change(
        self, kind: ChangeKind, work: Callable[[AsyncConnection], Awaitable[Iterable[Mapping[str, Any]]]]
    ) -> int:
        """`work` changes rows and returns the details of its changes."""

        async def all_of_it(connection: AsyncConnection) -> int:
            await exclude_older(connection)
            await connection.execute(_LOCK)
            change_id: int | None = None
            for detail in await work(connection):
                change_id = await append_change(connection, kind, None, detail)
            if change_id is None:
                return (await connection.execute(_LAST_OWN)).scalar_one()
            return change_id

        change_id = await self._database.write(all_of_it)
        await self._news.notify()
        return change_id


def _may_match(wanted: AclFilter) -> Sequence[sa.ColumnElement[bool]]:
    """Conditions that every ACL meets which the filter matches; the filter itself decides about the rest."""
    conditions: list[sa.ColumnElement[bool]] = []
    if wanted.resource_type is not ResourceType.ANY:
        conditions.append(ACLS.c.resource_type == int(wanted.resource_type))
    if wanted.operation is not Operation.ANY:
        conditions.append(ACLS.c.operation == int(wanted.operation))
    if wanted.permission is not Permission.ANY:
        conditions.append(ACLS.c.permission == int(wanted.permission))
    if wanted.principal is not None:
        conditions.append(ACLS.c.principal == wanted.principal)
    if wanted.host is not None:
        conditions.append(ACLS.c.host == wanted.host)
    if wanted.resource_name is not None:
        names = ACLS.c.resource_name == wanted.resource_name
        if wanted.pattern_type is PatternType.MATCH:
            prefixed = ACLS.c.pattern_type == int(PatternType.PREFIXED)
            names = sa.or_(names, ACLS.c.resource_name == WILDCARD, prefixed)
        conditions.append(names)
    return conditions


def _matching(rows: Sequence[Any], wanted: AclFilter) -> Sequence[Acl]:
    return sorted(filter(wanted.matches, map(_acl, rows)), key=details.acl_row)


def _acl(row: Any) -> Acl:
    resource_type, pattern_type, resource_name, principal, host, operation, permission = row
    return Acl(
        resource_type=ResourceType(resource_type),
        pattern_type=PatternType(pattern_type),
        resource_name=resource_name,
        principal=principal,
        host=host,
        operation=Operation(operation),
        permission=Permission(permission),
    )


def _ahead(column: sa.Column[Any]) -> sa.ColumnElement[bool]:
    return between_now_and(column, LEASE_SLACK * LEASE_MS)


def _users(rows: Sequence[Any]) -> Mapping[str, Mapping[Mechanism, ScramCredential]]:
    found: dict[str, dict[Mechanism, ScramCredential]] = {}
    for row in rows:
        mechanism = Mechanism(row.mechanism)
        found.setdefault(row.name, {})[mechanism] = ScramCredential(
            mechanism=mechanism,
            salt=bytes(row.salt),
            iterations=row.iterations,
            stored_key=bytes(row.stored_key),
            server_key=bytes(row.server_key),
        )
    return found


def _quotas(rows: Sequence[Any]) -> Mapping[QuotaEntity, Mapping[str, float]]:
    found: dict[QuotaEntity, dict[str, float]] = {}
    for row in rows:
        entity = details.entity_of(row.user_name, row.client_id, row.ip, row.defaults)
        found.setdefault(entity, {})[row.key] = row.value
    return found
