"""This agent's place among the others: its leased identity, and the list of who is alive.

The lease lives on the store's clock. Every beat brings the store's time, and between beats our monotonic clock goes on
from there: so what we write is dated and named by one clock, whatever ours says (`now_ms`). A beat that fails is tried
again at the next beat; the list of agents then stands as it was last seen. It is read at every beat, and as soon as one
that came, goes or was missed is announced: clients that hear of an agent from one and not from the other forget it
again, and librdkafka then waits for a minute on what it had asked there. When a newer epoch of our address exists we
are fenced: nothing sealed under the old lease can be committed any more, and `renew` takes a new epoch so that the next
file can be.

Whoever answers from memory what only one agent may answer asks `lease_runs` first: an agent that was away for longer
than its lease is not told what others did meanwhile, for its list of agents may be what it was. It hears of that at
the first beat that succeeds (`on_lapse`). One that cannot read the list for so long knows no more than one that was
away, and counts as such.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from metadata.contract.service import (
    BEAT_MS,
    LEASE_MS,
    AgentAddress,
    AgentInfo,
    MetadataService,
    MetadataUnavailableError,
    SchemaMismatchError,
    WentBackError,
    WriterFencedError,
    WriterLease,
)
from runtime.logging import get_logger
from runtime.runtime import Runtime

_log = get_logger(__name__)

NOTICE_MS = BEAT_MS + 500
"""How long a draining agent goes on serving: by then every other one has read the list of agents again."""
NOTICE_POLL_MS = 100
LOOK_MS_MIN = 100
"""Between two looks that were asked for by announcements: many come at once when many agents come and go."""
CLOCK_APART_MS = 60_000
"""Our own clock is so far from the store's that somebody should be told, for it is of no use to anybody."""
BEATS_TO_MEET_AGAIN = 2
"""After an outage of the store the others' leases have run out as ours has: the list of before stands until they have
had time to beat, or all partitions would move to whoever came first, and back. Not after an outage that our own lease
outlived: others may have come and gone in it, and the next list is believed."""


class Membership:
    def __init__(self, *, metadata: MetadataService, address: AgentAddress, runtime: Runtime) -> None:
        self._metadata = metadata
        self._address = address
        self._clock = runtime.clock
        self._metrics = runtime.metrics
        self._lease: WriterLease | None = None
        self._renewing = asyncio.Lock()
        self._beats: asyncio.Task[None] | None = None
        self._draining = False
        self._store_ahead_ms = 0.0
        """What to add to our monotonic clock for the store's time."""
        self._apart = False
        self._beat_ms = float("-inf")
        self._store_beat_ms = 0
        """When the last beat that succeeded was sent, and when the store took it, each by its own clock."""
        self._looked_ms = float("-inf")
        """When the list of agents was last asked for, with success."""
        self._lapsed_ms = float("-inf")
        """When `on_lapse` was called last."""
        self._lists_to_pass: int | None = None
        """So many more lists are not believed, and the next one is, whatever comes; None: they are believed."""
        self.agents: Sequence[AgentInfo] = ()
        self.version = 0
        """Grows whenever `agents` changes; encoded Metadata answers are cached under it."""
        self.on_change: Callable[[], None] | None = None
        """Called when `agents` has changed."""
        self.on_fatal: Callable[[Exception], None] | None = None
        """Called when we may not go on: the schema was migrated and does not take this program, or the store went
        back in time. Other connections may not know of it yet, so nobody else may ever say so."""
        self.on_lapse: Callable[[], None] | None = None
        """Called when our lease may have run out before it was extended, when it is a new one, and when the list of
        agents was not read for as long as a lease: by now others may have had, and given back, what was ours."""

    @property
    def current(self) -> WriterLease:
        if self._lease is None:
            raise RuntimeError("the agent has not joined yet")
        return self._lease

    @property
    def node_id(self) -> int:
        return self.current.writer_id

    def now_ms(self) -> int:
        """The store's time; known once joined."""
        return int(self._clock.monotonic_ms() + self._store_ahead_ms)

    @property
    def lease_runs(self) -> bool:
        """Whether nobody can have taken us for dead yet, and we know who is alive."""
        return self._clock.monotonic_ms() - min(self._beat_ms, self._looked_ms) <= LEASE_MS

    async def join(self) -> None:
        """Take the lease and learn who else is alive. Raises MetadataUnavailableError."""
        lease = self._lease = await self._metadata.register_agent(self._address)
        try:
            await self._beat(lease)
        except WriterFencedError:
            # The address is ours, so this was the call of a predecessor, killed while it was on its way.
            await self.renew(lease)
        self._see(await self._look())
        self._lists_to_pass = None  # a first beat says nothing about an outage
        await self._metadata.announce_agents()
        self._beats = asyncio.create_task(self._beat_for_ever(), name="heartbeat")

    async def drain(self, notice_ms: float) -> None:
        """Leave the Metadata answers of all agents; the lease goes on until `leave`.

        Returns when the others have had a beat to hear of it, or nobody else is left, at the latest after `notice_ms`:
        a client that is cut off earlier would be sent back to us.
        """
        self._draining = True
        ends_ms = self._clock.monotonic_ms() + min(notice_ms, NOTICE_MS)
        told = False
        while True:
            try:
                await self._beat(self.current)
                if not told:
                    await self._metadata.announce_agents()
                    told = True
                others = await self._look()
            except (MetadataUnavailableError, WriterFencedError) as error:
                _log.warning("could not announce draining", error=str(error))
                return
            self._see(others)
            if not others or self._clock.monotonic_ms() >= ends_ms:
                return
            await self._clock.sleep_ms(NOTICE_POLL_MS)

    async def leave(self) -> None:
        if self._beats is not None:
            self._beats.cancel()
            await asyncio.gather(self._beats, return_exceptions=True)
        if self._lease is None:
            return  # joining failed; its error is the one to tell
        try:
            await self._metadata.unregister_agent(self._lease)
            await self._metadata.announce_agents()
        except MetadataUnavailableError as error:
            _log.warning("could not give the lease back; it ends by itself", error=str(error))

    async def renew(self, fenced: WriterLease) -> None:
        """Take a new epoch, unless that was done since `fenced` was current. Waits until the store answers.

        Raises SchemaMismatchError and WentBackError, after `on_fatal` was told."""
        async with self._renewing:
            while self._lease == fenced:
                try:
                    lease = await self._metadata.register_agent(self._address)
                    await self._beat(lease)  # only then the store's time is known to one that joins
                    self._lease = lease
                    self._lapsed()
                    await self._metadata.announce_agents()
                    _log.warning("lease renewed after being fenced", epoch=self._lease.epoch)
                except (SchemaMismatchError, WentBackError) as error:
                    self._halt(error)
                    raise
                except (MetadataUnavailableError, WriterFencedError) as error:
                    self._metrics.lease_errors_total.inc()
                    _log.warning("lease not renewed yet", error=str(error))
                    await self._clock.sleep_ms(BEAT_MS / 4)

    def _halt(self, error: Exception) -> None:
        if self.on_fatal is not None:
            self.on_fatal(error)

    async def _beat_for_ever(self) -> None:
        while True:
            lease = self.current
            try:
                await self._look_until_next_beat()
                lease = self.current
                await self._beat(lease)
                agents = await self._look()
                if self._lists_to_pass:
                    self._lists_to_pass -= 1
                else:
                    self._lists_to_pass = None
                    if self._see(agents):  # missed, or come while a hint was lost: others may not know it yet
                        await self._metadata.announce_agents()
            except WriterFencedError:
                self._metrics.lease_errors_total.inc()
                try:
                    await self.renew(lease)
                except (SchemaMismatchError, WentBackError):
                    return  # and the agent halts
            except (SchemaMismatchError, WentBackError) as error:
                self._halt(error)
                return
            except Exception as error:  # a missed beat is not the end; the lease outlasts four of them
                self._metrics.lease_errors_total.inc()
                _log.warning("beat failed", error=str(error))

    async def _look_until_next_beat(self) -> None:
        """Sleep for a beat, and look at the list of agents whenever it is said to have changed."""
        next_ms = self._clock.monotonic_ms() + BEAT_MS
        while (left_ms := next_ms - self._clock.monotonic_ms()) > 0:
            if not await self._metadata.wait_for_agents(left_ms):
                return
            if self._lists_to_pass is None:
                try:
                    self._see(await self._look())
                except (SchemaMismatchError, WentBackError):
                    raise
                except Exception:
                    return  # the beat says so, if that fails too
            await self._clock.sleep_ms(LOOK_MS_MIN)

    async def _beat(self, lease: WriterLease) -> None:
        sent_ms = self._clock.monotonic_ms()
        now_ms = await self._metadata.heartbeat(lease, draining=self._draining)
        came_ms = self._clock.monotonic_ms()
        # The answer took its time, so ours is behind by that.
        self._store_ahead_ms = now_ms - came_ms
        # By the store's clock too, on which leases run: ours may stand still while the machine sleeps.
        lapsed = max(came_ms - self._beat_ms, now_ms - self._store_beat_ms) > LEASE_MS
        self._beat_ms, self._store_beat_ms = max(sent_ms, self._beat_ms), now_ms
        if lapsed:
            if self._lists_to_pass is None:  # one that is pending never grows, or there might be no end of it
                self._lists_to_pass = BEATS_TO_MEET_AGAIN
            self._lapsed()
        ahead_ms = self._clock.wall_ms() - now_ms
        self._metrics.clock_ahead_seconds.set(ahead_ms / 1000)
        if (abs(ahead_ms) > CLOCK_APART_MS) != self._apart:
            self._apart = not self._apart
            if self._apart:
                told = {"ours": _utc(now_ms + ahead_ms), "store": _utc(now_ms), "ahead_s": ahead_ms // 1000}
                _log.warning("this machine's clock is wrong, the metadata store's is used", **told)
            else:
                _log.info("this machine's clock agrees with the metadata store's again")

    async def _look(self) -> Sequence[AgentInfo]:
        """Who is alive. Raises MetadataUnavailableError."""
        sent_ms = self._clock.monotonic_ms()
        agents = await self._metadata.live_agents()
        ended_ms = self._looked_ms + LEASE_MS
        self._looked_ms = max(sent_ms, self._looked_ms)
        # Since it was told nothing was taken, for `lease_runs` was False.
        if self._clock.monotonic_ms() > ended_ms >= self._lapsed_ms:
            self._lapsed()
        return agents

    def _lapsed(self) -> None:
        self._lapsed_ms = self._clock.monotonic_ms()
        if self.on_lapse is not None:
            self.on_lapse()

    def _see(self, agents: Sequence[AgentInfo]) -> bool:
        """Whether that is another list than before."""
        # An empty list (the last one drains) tells a client nothing it could use.
        if agents and tuple(agents) != tuple(self.agents):
            self.agents = tuple(agents)
            self.version += 1
            if self.on_change is not None:
                self.on_change()
            return True
        return False


def _utc(wall_ms: int) -> str:
    return datetime.fromtimestamp(wall_ms // 1000, UTC).isoformat()
