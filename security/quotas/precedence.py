"""The quota that binds a request, by Kafka's order of eight levels (KIP-13, KIP-546, `DefaultQuotaCallback`).

From the narrowest: a user with a client id; a user with the default client; a user; the default user with a client id,
with the default client, alone; a client id; the default client. The first level that sets the key wins.

The level also decides how the limit is shared. All clients of a user share the user's quota, and all clients with one
id share that of the id. Nobody shares the quota of a default level: each client that it binds has that much.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from security.quotas.values import DEFAULT, Named, QuotaEntity, QuotaKey


@dataclass(frozen=True, slots=True)
class Share:
    """The clients that draw on one limit: a user, a client id, both, or an address. An empty part plays no role."""

    user: str = ""
    client_id: str = ""
    ip: str = ""


@dataclass(frozen=True, slots=True)
class Limit:
    share: Share
    per_second: float


class QuotaTable:
    """All quotas, ready to be asked. A new one is made after each change."""

    def __init__(self, quotas: Mapping[QuotaEntity, Mapping[str, float]]) -> None:
        self._by_key: dict[str, dict[tuple[Named, Named], float]] = {}
        self._by_ip: dict[Named, float] = {}
        for entity, values in quotas.items():
            for key, value in values.items():
                if entity.ip is None:
                    self._by_key.setdefault(key, {})[entity.user, entity.client_id] = value
                elif key == QuotaKey.CONNECTION_CREATION_RATE:
                    self._by_ip[entity.ip] = value

    @property
    def keys(self) -> frozenset[str]:
        """The keys that any user or client has a quota of: without one, nothing has to be counted."""
        return frozenset(self._by_key)

    @property
    def binds_addresses(self) -> bool:
        return bool(self._by_ip)

    def limit(self, key: QuotaKey, user: str, client_id: str) -> Limit | None:
        """The quota of this key that binds the client. None: it has none."""
        quotas = self._by_key.get(key)
        if quotas is None:
            return None
        for level_user, level_client in (
            (user, client_id),
            (user, DEFAULT),
            (user, None),
            (DEFAULT, client_id),
            (DEFAULT, DEFAULT),
            (DEFAULT, None),
            (None, client_id),
            (None, DEFAULT),
        ):
            value = quotas.get((level_user, level_client))
            if value is not None:
                share = Share(
                    user=user if level_user is not None else "", client_id=client_id if level_client is not None else ""
                )
                return Limit(share, value)
        return None

    def connections_per_second(self, ip: str) -> Limit | None:
        """New connections from this address; None: no quota."""
        value = self._by_ip.get(ip, self._by_ip.get(DEFAULT))
        return None if value is None else Limit(Share(ip=ip), value)


NO_QUOTAS: Final = QuotaTable({})
