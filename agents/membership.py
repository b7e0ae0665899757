"""This agent's place among the others: its leased identity, and the list of who is alive.

The lease lives on the store's clock. A beat that fails is tried again at the next beat; the list of agents then stands
as it was last seen. When a newer epoch of our address exists we are fenced: nothing sealed under the old lease can be
committed any more, and `renew` takes a new epoch so that the next file can be.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from metadata.service import (
    BEAT_MS,
    AgentAddress,
    AgentInfo,
    MetadataService,
    MetadataUnavailableError,
    WriterFencedError,
    WriterLease,
)
from siltstone.clock import Clock
from siltstone.logging import get_logger
from siltstone.metrics import Metrics

_log = get_logger(__name__)


class Membership:
    def __init__(self, *, metadata: MetadataService, address: AgentAddress, clock: Clock, metrics: Metrics) -> None:
        self._metadata = metadata
        self._address = address
        self._clock = clock
        self._metrics = metrics
        self._lease: WriterLease | None = None
        self._renewing = asyncio.Lock()
        self._beats: asyncio.Task[None] | None = None
        self._draining = False
        self.agents: Sequence[AgentInfo] = ()
        self.version = 0
        """Grows whenever `agents` changes; encoded Metadata answers are cached under it."""

    @property
    def current(self) -> WriterLease:
        if self._lease is None:
            raise RuntimeError("the agent has not joined yet")
        return self._lease

    @property
    def node_id(self) -> int:
        return self.current.writer_id

    async def join(self) -> None:
        """Take the lease and learn who else is alive. Raises MetadataUnavailableError."""
        self._lease = await self._metadata.register_agent(self._address)
        await self._metadata.heartbeat(self._lease)
        self._see(await self._metadata.live_agents())
        self._beats = asyncio.create_task(self._beat_for_ever(), name="heartbeat")

    async def drain(self) -> None:
        """Leave the Metadata answers of all agents; the lease goes on until `leave`."""
        self._draining = True
        try:
            await self._metadata.heartbeat(self.current, draining=True)
        except (MetadataUnavailableError, WriterFencedError) as error:
            _log.warning("could not announce draining", error=str(error))

    async def leave(self) -> None:
        if self._beats is not None:
            self._beats.cancel()
            await asyncio.gather(self._beats, return_exceptions=True)
        try:
            await self._metadata.unregister_agent(self.current)
        except MetadataUnavailableError as error:
            _log.warning("could not give the lease back; it ends by itself", error=str(error))

    async def renew(self, fenced: WriterLease) -> None:
        """Take a new epoch, unless that was done since `fenced` was current. Waits until the store answers."""
        async with self._renewing:
            while self._lease == fenced:
                try:
                    self._lease = await self._metadata.register_agent(self._address)
                    await self._metadata.heartbeat(self._lease, draining=self._draining)
                    _log.warning("lease renewed after being fenced", epoch=self._lease.epoch)
                except (MetadataUnavailableError, WriterFencedError) as error:
                    self._metrics.lease_errors_total.inc()
                    _log.warning("lease not renewed yet", error=str(error))
                    await self._clock.sleep_ms(BEAT_MS / 4)

    async def _beat_for_ever(self) -> None:
        while True:
            await self._clock.sleep_ms(BEAT_MS)
            lease = self.current
            try:
                await self._metadata.heartbeat(lease, draining=self._draining)
                self._see(await self._metadata.live_agents())
            except WriterFencedError:
                self._metrics.lease_errors_total.inc()
                await self.renew(lease)
            except Exception as error:  # a missed beat is not the end; the lease outlasts four of them
                self._metrics.lease_errors_total.inc()
                _log.warning("beat failed", error=str(error))

    def _see(self, agents: Sequence[AgentInfo]) -> None:
        if tuple(agents) != tuple(self.agents):
            self.agents = tuple(agents)
            self.version += 1
