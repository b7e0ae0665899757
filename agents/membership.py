"""This agent's place among the others: its leased identity, and the list of live agents.

The lease lives on the store's clock. Every beat brings the store's time; between beats our monotonic clock goes on from
there. So all that we write is dated and named by one clock, whatever our own says (`now_ms`). If a beat fails, the next
beat tries again, and the list of agents stays as last seen.

The list is read at every beat, and as soon as an agent announces that another one came, left or was missed. Agents must
agree soon: a client that hears of an agent from one and not from another forgets it again, and librdkafka then waits a
minute for the requests it had sent there. If a newer epoch of our address exists, we are fenced: nothing sealed under
the old lease can be committed any more. `renew` takes a new epoch for the next file, unless a living process has that
newer epoch: then we halt (`agents/registration.py`).

Code that answers from memory what only one agent may answer checks `lease_runs` first. An agent that was away for
longer than its lease does not know what others did meanwhile; its list of agents may be out of date. It learns this at
the first beat that succeeds (`on_lapse`). An agent that could not read the list for as long as a lease knows no more,
and counts as away too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from agents.registration import DuplicateAgentError, register
from metadata.contract.agents import AgentMetadata
from metadata.contract.errors import MetadataUnavailableError, SchemaMismatchError, WentBackError
from metadata.contract.leases import BEAT_MS, LEASE_MS, AgentAddress, AgentInfo, WriterFencedError, WriterLease
from runtime.logging import get_logger
from runtime.runtime import Runtime

_log = get_logger(__name__)

NOTICE_MS = BEAT_MS + 500
"""How long a draining agent goes on serving. By then every other agent has read the list of agents again."""
NOTICE_POLL_MS = 100
"""Pause between two looks at the list while draining: the last agent left need not wait for anybody."""
LOOK_MS_MIN = 100
"""Least time between two reads of the list that announcements ask for; many announcements come when many agents come
and go."""
CLOCK_APART_MS = 60_000
"""If our clock differs from the store's by this much, the log says so. Nothing here depends on it."""
BEATS_TO_MEET_AGAIN = 2
"""How long the list from before an outage stays in use. After an outage of the store, the others' leases have run out
as ours has, and they need time to beat; otherwise all partitions would move to the first agent that is back, and
back again. This does not hold after an outage that our own lease outlived: others may have come and gone meanwhile,
and the next list is believed."""
_FATAL = (SchemaMismatchError, WentBackError, DuplicateAgentError)
"""After these the agent must halt."""


class Membership:
    def __init__(self, *, metadata: AgentMetadata, address: AgentAddress, runtime: Runtime) -> None:
        self._metadata = metadata
        self._address = address
        self._clock = runtime.clock
        self._metrics = runtime.metrics
        self._lease: WriterLease | None = None
        self._renewing = asyncio.Lock()
        self._fatal: Exception | None = None
        self._beats: asyncio.Task[None] | None = None
        self._draining = False
        self._store_ahead_ms = 0.0
        """The store's time less our monotonic clock."""
        self._apart = False
        self._beat_ms = float("-inf")
        self._store_beat_ms = 0
        """When we sent the last beat that succeeded, and when the store took it, each by its own clock."""
        self._looked_ms = float("-inf")
        """When the list of agents was last read successfully."""
        self._lapsed_ms = float("-inf")
        """When `on_lapse` was last called."""
        self._lists_to_pass: int | None = None
        """How many more lists are not believed; the list after them always is. None: lists are believed."""
        self.is_last = False
        """This agent drains, and no other one is left."""
        self.agents: Sequence[AgentInfo] = ()
        self.version = 0
        """Grows whenever `agents` changes; the key of cached Metadata answers."""
        self.on_change: Callable[[], None] | None = None
        """Called when `agents` has changed."""
        self.on_fatal: Callable[[Exception], None] | None = None
        """Called when this agent must stop: the schema was migrated and does not support this program, the store went
        back in time, or another process has our address. Other connections may not know it yet, so this may be the only
        report."""
        self.on_lapse: Callable[[], None] | None = None
        """Called in three cases: our lease may have run out before it was extended, it is a new lease, or the list of
        agents was not read for as long as a lease. By now others may have owned, and given back, what was ours."""

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
        """No other agent can have taken us for dead yet, and our list of agents is fresh."""
        return self._clock.monotonic_ms() - min(self._beat_ms, self._looked_ms) <= LEASE_MS

    @property
    def beat_ms(self) -> float:
        """When the last heartbeat that the store took was sent: the lease runs for LEASE_MS from then, or longer."""
        return self._beat_ms

    @property
    def lapsed_ms(self) -> float:
        """The lease runs without a break since then, or longer."""
        return self._lapsed_ms

    async def beat(self) -> None:
        """Extend the lease now, for somebody who cannot wait for the next beat.

        Raises MetadataUnavailableError, WriterFencedError. The beats go on, and renew a lease that was fenced.
        """
        await self._beat(self.current)

    async def join(self) -> None:
        """Take the lease and learn which other agents are alive.

        If the last process at our address was killed, this waits ALIVE_MS at most from its last heartbeat. Raises
        MetadataUnavailableError, DuplicateAgentError.
        """
        lease = self._lease = await register(self._metadata, self._address, self._clock)
        try:
            await self._beat(lease)
        except WriterFencedError:
            # The address is ours, so this row came from a killed predecessor whose call was still on its way.
            await self.renew(lease)
        self._see(await self._look())
        self._lists_to_pass = None  # a first beat says nothing about an outage
        await self._metadata.announce_agents()
        self._beats = asyncio.create_task(self._beat_for_ever(), name="heartbeat")

    async def drain(self, notice_ms: float) -> bool:
        """Leave the Metadata answers of all agents; the lease stays until `leave`.

        Returns when the others have had a beat to notice, when no other agent is left, or at the latest after
        `notice_ms`. A client that is sent away earlier would be sent back to us. While the store is away, it tries for
        as long as a lease. False: there is nobody to send clients to, or the others could not be told.
        """
        self._draining = True
        began_ms = self._clock.monotonic_ms()
        ends_ms = began_ms + min(notice_ms, NOTICE_MS)
        told = False
        while True:
            try:
                await self._beat(self.current)
                # After the beat that carries `draining`: on the hint the others read the list at once.
                if not told:
                    await self._metadata.announce_agents()
                    told = True
                others = await self._look()
            except MetadataUnavailableError as error:
                has_others = any(agent.writer_id != self.node_id for agent in self.agents)
                if not has_others or self._clock.monotonic_ms() >= began_ms + min(notice_ms, LEASE_MS):
                    _log.warning("could not announce draining", error=str(error))
                    return False
                ends_ms = self._clock.monotonic_ms() + min(notice_ms, NOTICE_MS)
                await self._clock.sleep_ms(NOTICE_POLL_MS)
                continue
            except WriterFencedError as error:
                _log.warning("could not announce draining", error=str(error))
                return False
            # After an outage the others may not have beaten yet: an empty list is no proof that they are gone.
            if self._lists_to_pass is None:
                self._see(others)
            if self.is_last or self._clock.monotonic_ms() >= ends_ms:
                return not self.is_last
            await self._clock.sleep_ms(NOTICE_POLL_MS)

    async def leave(self) -> None:
        if self._beats is not None:
            self._beats.cancel()
            await asyncio.gather(self._beats, return_exceptions=True)
        if self._lease is None:
            return  # joining failed; report that error
        try:
            await self._metadata.unregister_agent(self._lease)
            await self._metadata.announce_agents()
        except MetadataUnavailableError as error:
            _log.warning("could not give the lease back; it ends by itself", error=str(error))

    async def renew(self, fenced: WriterLease) -> None:
        """Take a new epoch, unless `fenced` is no longer the current lease. Waits until the store answers.

        Calls `on_fatal` first and then raises SchemaMismatchError, WentBackError or, if another living process has our
        address, DuplicateAgentError.
        """
        async with self._renewing:
            last = fenced
            if self._fatal is not None:  # the files that are still on their way need not find out once more
                raise self._fatal
            # The committer and the beats may both find out; the second one finds the lease renewed already.
            while self._lease == fenced:
                try:
                    last = await register(self._metadata, self._address, self._clock, instead_of=last)
                    await self._beat(last)  # an agent that joins knows the store's time only now
                    self._lease = last
                    self._lapsed()
                    await self._metadata.announce_agents()
                    _log.warning("lease renewed after being fenced", epoch=self._lease.epoch)
                except _FATAL as error:
                    self._halt(error)
                    raise
                except (MetadataUnavailableError, WriterFencedError) as error:
                    self._metrics.lease_errors_total.inc()
                    _log.warning("lease not renewed yet", error=str(error))
                    await self._clock.sleep_ms(BEAT_MS / 4)

    def _halt(self, error: Exception) -> None:
        self._fatal = error
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
                    if self._see(agents):  # missed, or it came while a hint was lost: others may not know it yet
                        await self._metadata.announce_agents()
            except WriterFencedError:
                self._metrics.lease_errors_total.inc()
                try:
                    await self.renew(lease)
                except _FATAL:
                    return  # and the agent halts
                except Exception as error:  # the next beat is fenced too, and renews again
                    self._metrics.lease_errors_total.inc()
                    _log.warning("lease not renewed, the next beat tries again", error=str(error))
            except _FATAL as error:
                self._halt(error)
                return
            except Exception as error:  # one missed beat does no harm; the lease outlasts four
                self._metrics.lease_errors_total.inc()
                _log.warning("beat failed", error=str(error))

    async def _look_until_next_beat(self) -> None:
        """Sleep for one beat; meanwhile read the list of agents whenever it is announced to have changed."""
        next_ms = self._clock.monotonic_ms() + BEAT_MS
        while (left_ms := next_ms - self._clock.monotonic_ms()) > 0:
            if not await self._metadata.wait_for_agents(left_ms):
                return
            if self._lists_to_pass is None:
                try:
                    self._see(await self._look())
                except _FATAL:
                    raise
                except Exception:
                    return  # if that fails too, the beat reports it
            await self._clock.sleep_ms(LOOK_MS_MIN)

    async def _beat(self, lease: WriterLease) -> None:
        sent_ms = self._clock.monotonic_ms()
        now_ms = await self._metadata.heartbeat(lease, draining=self._draining)
        came_ms = self._clock.monotonic_ms()
        # The answer took its time, so our estimate is behind by that much.
        self._store_ahead_ms = now_ms - came_ms
        # Compare by the store's clock too, on which leases run: ours may stand still while the machine sleeps.
        lapsed = max(came_ms - self._beat_ms, now_ms - self._store_beat_ms) > LEASE_MS
        # The lease counts from the sending: the store may have taken the beat at any moment since then.
        # `max`, because the answer of a renewal and that of a beat may overtake each other.
        self._beat_ms, self._store_beat_ms = max(sent_ms, self._beat_ms), now_ms
        if lapsed:
            if self._lists_to_pass is None:  # a call that is pending never grows, or its wait might never end
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
        """Read the list of live agents. Raises MetadataUnavailableError."""
        sent_ms = self._clock.monotonic_ms()
        agents = await self._metadata.live_agents()
        ended_ms = self._looked_ms + LEASE_MS
        # The list counts from the sending: agents that came while the answer was on its way are not in it.
        self._looked_ms = max(sent_ms, self._looked_ms)
        # Nothing was taken over since, because `lease_runs` was False.
        if self._clock.monotonic_ms() > ended_ms >= self._lapsed_ms:
            self._lapsed()
        return agents

    def _lapsed(self) -> None:
        self._lapsed_ms = self._clock.monotonic_ms()
        if self.on_lapse is not None:
            self.on_lapse()

    def _see(self, agents: Sequence[AgentInfo]) -> bool:
        """Returns True if the list has changed."""
        self.is_last = self._draining and not agents
        # An empty list (the last agent drains) would tell a client nothing useful.
        if agents and tuple(agents) != tuple(self.agents):
            self.agents = tuple(agents)
            self.version += 1
            if self.on_change is not None:
                self.on_change()
            return True
        return False


def _utc(wall_ms: int) -> str:
    return datetime.fromtimestamp(wall_ms // 1000, UTC).isoformat()
