"""Users, ACLs and quotas in the details of changes, and the ids of their rows. Pure.

A detail is JSON in Postgres, which takes neither NUL characters nor lone surrogates. So texts that a client chose are
written like the paths of URLs: `quoted` is exact for every `str`, and usual names stay as they are.

A change has at most ROWS_MAX rows; more of them become several changes of one transaction. So whoever reads changes
needs nothing else, the metadata backup too, however many rows a call adds or removes.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar
from urllib.parse import quote_from_bytes, unquote_to_bytes

from metadata.contract.tail import ChangeKind
from runtime.errors import BugError
from security.acls.values import Acl, Operation, PatternType, Permission, ResourceType
from security.quotas.values import DEFAULT, Named, QuotaEntity

ROWS_MAX: Final = 1_000
CLUSTER_SECRET: Final = "cluster"  # noqa: S105
"""The name of the one secret that there is."""
KINDS: Final = frozenset({ChangeKind.USERS_CHANGED, ChangeKind.ACLS_CHANGED, ChangeKind.QUOTAS_CHANGED})

Quotas: TypeAlias = Mapping[QuotaEntity, Mapping[str, float | None]]
"""The value of each quota by its entity and key; None: removed."""

T = TypeVar("T")


def octets(text: str) -> bytes:
    """As `Utf8` of `metadata/postgres/tables.py` stores it."""
    return text.encode("utf-8", "surrogatepass")


def quoted(text: str) -> str:
    return quote_from_bytes(octets(text), safe=" !#$&'()*+,/:;=?@[]^`{|}<>")


def unquoted(text: str) -> str:
    return unquote_to_bytes(text).decode("utf-8", "surrogatepass")


# ---- the details ---------------------------------------------------------------------------------------------------


def users_changed(names: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    """Names and nothing else: details reach the bucket."""
    for some in _slices(sorted(set(names))):
        yield {"names": [quoted(name) for name in some]}


def names_of(detail: Mapping[str, Any]) -> Sequence[str]:
    return [unquoted(name) for name in detail["names"]]


def acls_changed(*, added: Sequence[Acl] = (), removed: Sequence[Acl] = ()) -> Iterator[Mapping[str, Any]]:
    for some in _slices(added):
        yield {"added": [acl_row(acl) for acl in some], "removed": []}
    for some in _slices(removed):
        yield {"added": [], "removed": [acl_row(acl) for acl in some]}


def acls_of(detail: Mapping[str, Any]) -> tuple[Sequence[Acl], Sequence[Acl]]:
    """(added, removed)"""
    return [acl_of(row) for row in detail["added"]], [acl_of(row) for row in detail["removed"]]


def quotas_changed(changes: Quotas) -> Iterator[Mapping[str, Any]]:
    """Raises BugError for a value that JSON cannot hold."""
    rows = [[*quota_row(entity, key), value] for entity, values in changes.items() for key, value in values.items()]
    for *_, key, value in rows:
        if value is not None and not math.isfinite(value):
            raise BugError(f"the quota {key} is no number: {value}")
    for some in _slices(rows):
        yield {"quotas": list(some)}


def quotas_of(detail: Mapping[str, Any]) -> Quotas:
    found: dict[QuotaEntity, dict[str, float | None]] = {}
    for user, client_id, ip, key, value in detail["quotas"]:
        entity = QuotaEntity(user=_named(user), client_id=_named(client_id), ip=_named(ip))
        found.setdefault(entity, {})[key] = None if value is None else float(value)  # Postgres writes 1e300 in full
    return found


def _slices(rows: Sequence[T]) -> Iterator[Sequence[T]]:
    for first in range(0, len(rows), ROWS_MAX):
        yield rows[first : first + ROWS_MAX]


# ---- their rows, and the ids in Postgres ---------------------------------------------------------------------------


def acl_row(acl: Acl) -> list[int | str]:
    return [
        int(acl.resource_type),
        int(acl.pattern_type),
        quoted(acl.resource_name),
        quoted(acl.principal),
        quoted(acl.host),
        int(acl.operation),
        int(acl.permission),
    ]


def acl_of(row: Sequence[Any]) -> Acl:
    resource_type, pattern_type, resource_name, principal, host, operation, permission = row
    return Acl(
        resource_type=ResourceType(resource_type),
        pattern_type=PatternType(pattern_type),
        resource_name=unquoted(resource_name),
        principal=unquoted(principal),
        host=unquoted(host),
        operation=Operation(operation),
        permission=Permission(permission),
    )


def acl_id(acl: Acl) -> bytes:
    return _id(acl_row(acl))


def acl_columns(acl: Acl) -> dict[str, Any]:
    """The row of `acls`."""
    return {
        "acl_id": acl_id(acl),
        "resource_type": int(acl.resource_type),
        "pattern_type": int(acl.pattern_type),
        "resource_name": acl.resource_name,
        "principal": acl.principal,
        "host": acl.host,
        "operation": int(acl.operation),
        "permission": int(acl.permission),
    }


def quota_row(entity: QuotaEntity, key: str) -> list[Any]:
    """A part is a text, True for the default, or None."""
    return [_part(entity.user), _part(entity.client_id), _part(entity.ip), key]


def quota_id(entity: QuotaEntity, key: str) -> bytes:
    return _id(quota_row(entity, key))


def quota_columns(entity: QuotaEntity, key: str, value: float | None) -> dict[str, Any]:
    """The row of `client_quotas`. A default is NULL, and a bit of `defaults`."""
    parts = (entity.user, entity.client_id, entity.ip)
    defaults = sum(1 << bit for bit, part in enumerate(parts) if part is DEFAULT)
    user, client_id, ip = (None if part is DEFAULT else part for part in parts)
    return {
        "quota_id": quota_id(entity, key),
        "user_name": user,
        "client_id": client_id,
        "ip": ip,
        "defaults": defaults,
        "key": key,
        "value": value,
    }


def entity_of(user_name: str | None, client_id: str | None, ip: str | None, defaults: int) -> QuotaEntity:
    """Whom the columns of `quota_columns` name."""
    user, client, address = (
        DEFAULT if defaults & 1 << bit else part for bit, part in enumerate((user_name, client_id, ip))
    )
    return QuotaEntity(user=user, client_id=client, ip=address)


def user_hash(name: str) -> bytes:
    return hashlib.sha256(octets(name)).digest()


def _id(row: Sequence[Any]) -> bytes:
    return hashlib.sha256(json.dumps(row, separators=(",", ":")).encode()).digest()


def _part(named: Named) -> str | bool | None:
    if named is None or named is DEFAULT:
        return None if named is None else True
    return quoted(named)


def _named(part: str | bool | None) -> Named:
    if part is None or part is True:
        return None if part is None else DEFAULT
    return unquoted(str(part))
