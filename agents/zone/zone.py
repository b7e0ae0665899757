"""The agents of one zone as one of them sees it: which of them owns a file, asking it, and serving the others.

Everything here only saves GETs. An agent that is not asked, does not answer in time or answers wrongly costs one GET
by the agent that reads.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence

from agents.read.path import ReadPath
from agents.read.source import BlockSource, Fetched
from agents.zone.client import Neighbours
from agents.zone.frames import Pool, Request
from agents.zone.lines import Dial
from agents.zone.owner import members, owner
from agents.zone.server import ZoneServer
from agents.zone.tls import ZoneTls
from metadata.contract.leases import AgentInfo
from runtime.logging import get_logger
from runtime.runtime import Runtime

_log = get_logger(__name__)


class Zone:
    """Until `start`, every read goes to the object store."""

    def __init__(self, name: str, dial: Dial, runtime: Runtime) -> None:
        self._name = name
        self._runtime = runtime
        self._neighbours = Neighbours(dial, runtime)
        self._agents: Callable[[], Sequence[AgentInfo]] = lambda: ()
        self._seen: Sequence[AgentInfo] = ()
        self._members: Sequence[AgentInfo] = ()
        self._node_id = -1
        self._cluster_id = ""
        self._server: ZoneServer | None = None

    def around(self, store: BlockSource, pool: str) -> BlockSource:
        return ZoneSource(self, store, Pool[pool.upper()])

    async def start(
        self,
        listening: socket.socket,
        *,
        cluster_id: str,
        node_id: int,
        agents: Callable[[], Sequence[AgentInfo]],
        reads: ReadPath,
        tls: ZoneTls | None = None,
    ) -> None:
        """Serve on a bound socket, and ask the others from now on. `agents`: those that live, as last seen."""
        pools = {Pool.HOT: reads.hot, Pool.COLD: reads.cold}
        server = self._server = ZoneServer(pools=pools, is_asking=self._neighbours.is_asking, runtime=self._runtime)
        if tls is not None:
            self._neighbours.dial_by(tls.dial)
        await server.serve(listening, cluster_id, tls)
        self._cluster_id, self._node_id, self._agents = cluster_id, node_id, agents
        _log.info("serves its zone", zone=self._name, port=listening.getsockname()[1])

    async def close(self) -> None:
        self._agents = lambda: ()
        self._neighbours.keep_only(())
        if self._server is not None:
            await self._server.close()

    async def ask(self, pool: Pool, key: str, size_bytes: int, start: int, length: int) -> Fetched | None:
        """The blocks from the neighbour that owns the file; None: read the object store."""
        agents = self._agents()
        if agents is not self._seen:
            self._seen, self._members = agents, members(agents, self._name)
            self._neighbours.keep_only(self._members)
        found = owner(key, self._members)
        if found is None or found.writer_id == self._node_id:
            return None
        request = Request(
            cluster_id=self._cluster_id, key=key, pool=pool, file_bytes=size_bytes, start=start, length=length
        )
        return await self._neighbours.ask(found, request)


class ZoneSource:
    """Asks the zone for bytes that others of it read too, and the object store for all that it does not give."""

    def __init__(self, zone: Zone, store: BlockSource, pool: Pool) -> None:
        self._zone = zone
        self._store = store
        self._pool = pool

    async def ask(self, key: str, size_bytes: int, start: int, length: int) -> Fetched | None:
        return await self._zone.ask(self._pool, key, size_bytes, start, length)

    async def get_range(self, key: str, start: int, length: int) -> Fetched:
        return await self._store.get_range(key, start, length)
