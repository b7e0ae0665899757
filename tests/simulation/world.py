"""One run: everything is put together under one seed, runs, is healed, settles, and is checked.

The first few seconds have working clients and faults. Then the faults end, sleepers wake, the dead are replaced, and
every producer must be answered. Then every consumer, and one reader at each agent, must reach the end. The checks come
last. All time is virtual and every random choice comes from the seed, so a seed is a run.
"""

from __future__ import annotations

import asyncio
import random
import traceback
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, TypeAlias

import structlog

from metadata.contract.files import FileState
from metadata.memory.store import MemoryMetadata
from runtime.ids import SystemIds
from runtime.runtime import Runtime
from storage.keys import PROBE_PREFIX
from tests.simulation import checks, hedges, seals
from tests.simulation.access.access import Access, has_acls
from tests.simulation.access.changes import AccessAdmin
from tests.simulation.access.cuts import Cuts
from tests.simulation.access.guests import Guest
from tests.simulation.access.principals import SETTINGS
from tests.simulation.book import Book, TopicPartition
from tests.simulation.clients import Client, Line
from tests.simulation.consumers import Browser, Consumer
from tests.simulation.faults import Faults, Kind
from tests.simulation.fleet import Seat
from tests.simulation.janitors import JanitorSeat
from tests.simulation.loop import Process, SimulationClock, SimulationLoop, StuckError
from tests.simulation.nemesis import Nemesis, TopicAdmin
from tests.simulation.network import Network
from tests.simulation.producers import IdempotentProducer, PlainProducer
from tests.simulation.rolling import Roller
from tests.simulation.seals import SealWatch
from tests.simulation.services import SimulatedMetadata, finish
from tests.simulation.stores import Stores
from tests.simulation.transactions.consumers import CommittedReader
from tests.simulation.transactions.transactions import Transactions, has_transactions
from tests.simulation.writers_kinds import Blocked, Trickle, seal_settings

STEADY = "steady"
"""A topic that stays; every check is made on it."""
CHURNED = "churned"
"""A topic that is deleted and created again."""

_ZONES = (("",), ("",), ("a",), ("a", "b", "a"), ("a", "a", ""))
"""The zones of a run's agents, in turn. Agents without one meet more faults of the store."""
WORK_MS = (600, 2_500)
SETTLE_MS_MAX = 30_000
HEALED_MS = 8_000
"""From this long after the end of the faults, no client may have trouble any more."""


@dataclass(frozen=True, slots=True)
class Event:
    at_ms: float
    who: str
    what: str
    facts: dict[str, Any]

    def __str__(self) -> str:
        facts = " ".join(f"{name}={value}" for name, value in self.facts.items())
        return f"{self.at_ms:10.2f} ms  {self.who:<12} {self.what}  {facts}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a run."""

    seed: int
    violations: list[str]
    counts: Counter[Kind]
    trace: list[Event]
    callbacks: int
    virtual_ms: float
    planted: str = ""
    stuck: str = field(default="", repr=False)

    @property
    def trace_hash(self) -> str:
        return blake2b("\n".join(map(str, self.trace)).encode(), digest_size=16).hexdigest()

    @property
    def replay(self) -> str:
        return f"python -m tests.simulation --seed {self.seed} -v" + (f" --plant {self.planted}" * bool(self.planted))

    def __str__(self) -> str:
        return "\n".join([f"seed {self.seed}", *self.violations, f"replay it with: {self.replay}"])


class World:
    def __init__(self, seed: int, *, says_all: bool = False) -> None:
        self.seed = seed
        self.rng = random.Random(f"{seed} clients")
        self.zone_names = random.Random(f"{seed} zones").choice(_ZONES)
        self.faults = Faults(random.Random(f"{seed} faults"))
        self.loop = SimulationLoop(random.Random(f"{seed} schedule"), shuffles=seed % 2 == 1)
        self.loop.set_exception_handler(self._unhandled)
        self.trace: list[Event] = []
        self.violations: list[str] = []
        self.healed_ms: float | None = None
        self.book = Book()
        self.listening: dict[SimulatedMetadata, None] = {}
        self.server_clock = SimulationClock(self.loop)
        self.server = MemoryMetadata(runtime=Runtime(clock=self.server_clock, ids=SystemIds(seed=seed)))
        self.stores = Stores(self, self.rng, self.server_clock)
        self.hedges = self.rng.random() < 0.5
        self.deleted_ms: dict[str, float] = {}
        self._says_all = says_all
        self._until_ms = 0.0
        self._ends: dict[TopicPartition, int] | None = None
        self._copies = 0
        self.network = Network(self.loop, self.faults)
        settings: dict[str, Any] = {
            "produce_linger_ms": int(self.faults.between(5, 250)),
            "tail_poll_ms": int(self.faults.between(30, self.rng.choice((150, 500, 2500)))),
            "produce_uploads_max": self.rng.choice((1, 2, 8)),
            "cache_hot_bytes": self.rng.choice((0, 500, 1 << 20)),
            "cache_cold_bytes": 0,
            "drain_notice_ms": 3_200,
            "drain_timeout_ms": 3_000,
        }
        self.seal_watch = SealWatch()
        self.has_kinds = self.rng.random() < 0.35
        self.tokens_max = 600.0
        if self.has_kinds:
            more, self.tokens_max = seal_settings(self.rng)
            settings |= more
        self.access = Access(self) if has_acls(seed) else None
        if self.access is not None:
            settings |= SETTINGS
        self.transactions = Transactions(self) if has_transactions(seed) else None
        if self.transactions is not None:
            settings |= self.transactions.settings(tail_poll_ms=settings["tail_poll_ms"])
        self.guests: list[Guest] = []
        self.seats = [Seat(self, number, settings) for number in range(self.rng.choice((2, 2, 3)))]
        self.addresses = [seat.address for seat in self.seats]
        self.partitions: list[TopicPartition] = [(STEADY, number) for number in range(self.rng.choice((1, 2)))]

    # ---- for all parts of it

    def was_told_to_stop(self, address: str) -> bool:
        """An agent at this address may send clients away."""
        return any(seat.was_told_to_stop for seat in self.seats if seat.address == address)

    def new_process(self, name: str) -> Process:
        return Process(self.loop, name)

    def note(self, who: str, what: str, **facts: Any) -> None:
        self.trace.append(Event(round(self.loop.now_ms, 3), who, what, facts))

    def noting(self, who: str) -> Callable[..., None]:
        return lambda what, **facts: self.note(who, what, **facts)

    def violation(self, text: str, error: BaseException | None = None) -> None:
        if error is not None:
            text += "\n" + "".join(traceback.format_exception(error))
        self.note("CHECK", text)
        self.violations.append(text)

    @property
    def has_merges(self) -> bool:
        return self.transactions is not None and self.transactions.has_merges

    def may_vanish(self, partition: TopicPartition) -> bool:
        return partition[0] == CHURNED

    def is_healed_since(self, sent_ms: float) -> bool:
        """Whether a request sent at that time met no fault."""
        return self.healed_ms is not None and sent_ms > self.healed_ms + HEALED_MS

    def extend(self, duration_ms: float) -> None:
        """Faults go on at least until then."""
        if self.healed_ms is None:
            self._until_ms = max(self._until_ms, self.loop.now_ms + duration_ms + 200)

    def start_copy(self, process: Process, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run while a second copy is sent: the run does not end without it."""
        self._copies += 1
        self.start(process, coroutine).add_done_callback(self._copy_ended)

    def is_at_end(self, positions: dict[TopicPartition, int]) -> bool:
        return self._ends is not None and all(end >= self._ends[place] for place, end in positions.items())

    def deleting(self, key: str) -> None:
        """Called before an object is deleted."""
        if key.startswith(PROBE_PREFIX):
            return
        database = self.server.database
        file_id = database.file_ids.get(key)
        if file_id is None or database.files[file_id].info.state is FileState.LIVE:
            state = "never seen" if file_id is None else database.files[file_id].info.state.value
            self.violation(f"object {key} was deleted while its key was {state}")

    # ---- the run

    async def run(self) -> None:
        await self.server.agents.create_topic(STEADY, partitions=len(self.partitions), configs={})
        clients, consumers, admin = self._clients()
        grantor = self._begin_access(self.access) if self.access is not None else None
        more: list[Reader] = []
        if self.transactions is not None:
            transactional, more = await self.transactions.begin(CHURNED, has_churned=admin is not None)
            clients += transactional
        has_janitor = self.rng.random() < (0.8 if self.stores.has_second else 0.5)
        for seat in self.seats:
            seat.start()
        for client in (*clients, *consumers, *more, *self.guests, *([grantor] if grantor is not None else [])):
            client.start()
        if admin is not None:
            await self.server.agents.create_topic(CHURNED, partitions=1, configs={})
            self._watch_deletions()
            admin.start()
        if has_janitor:
            janitor = JanitorSeat(self)
            self.start(janitor.process, janitor.run())
        self.start(self.loop.outside, Nemesis(self, has_janitor=has_janitor).run())
        self.start(self.loop.outside, Roller(self).run())
        self._until_ms = self._until_ms or self.faults.between(*WORK_MS)
        while self.loop.now_ms < self._until_ms and not self.violations:
            await asyncio.sleep(0.05)
        self._heal()
        clients += [admin] if admin is not None else []
        await self._until("agents ready", lambda: [seat.address for seat in self.seats if not seat.is_ready])
        await self._until("clients answered", lambda: [each.name for each in clients if not each.is_done])
        if grantor is not None:
            await self._until("rights at rest", lambda: [] if grantor.is_done else [grantor.name])
            for guest in self.guests:
                guest.may_end = True
            await self._until("guests gone", lambda: [each.name for each in self.guests if not each.is_done])
        await self._until("copies answered", lambda: ["copies"] * self._copies)
        snapshot = await self.server.agents.snapshot()
        self._ends = self._ends_of(snapshot)
        auditors: list[Reader] = [Auditor(self, seat.address, self.partitions) for seat in self.seats]
        if self.transactions is not None:
            auditors += self.transactions.auditors()
        for auditor in auditors:
            auditor.start()
        readers: list[Reader] = [*consumers, *more, *auditors]
        await self._until("readers at the end", lambda: [each.name for each in readers if not each.is_done])

    def _clients(self) -> tuple[list[Client], list[Consumer], TopicAdmin | None]:
        rng = self.rng
        clients: list[Client] = [
            IdempotentProducer(self, f"exact{number}", rng.choice(self.partitions), rng.randint(3, 12))
            for number in range(rng.choice((1, 2, 2)))
        ]
        if self.has_kinds:
            clients += [
                Blocked(self, f"blocked{number}", rng.choice(self.partitions)) for number in range(rng.choice((1, 2)))
            ]
            clients += [
                Trickle(self, f"trickle{number}", rng.choice(self.partitions)) for number in range(rng.choice((1, 2)))
            ]
        if rng.random() < 0.6:
            clients.append(PlainProducer(self, "plain", self.partitions, rng.randint(2, 6)))
        if rng.random() < 0.3:
            clients.append(Browser(self, "browser", [*self.partitions, (CHURNED, 0)]))
        consumers = [Consumer(self, "reader0", self.partitions)]
        if rng.random() < 0.5:
            consumers.append(Consumer(self, "reader1", self.partitions, from_latest=True))
        if rng.random() < 0.3:
            clients.append(PlainProducer(self, "churn", [(CHURNED, 0), *self.partitions[:1]], rng.randint(4, 10)))
            return clients, consumers, TopicAdmin(self, CHURNED)
        return clients, consumers, None

    def _begin_access(self, access: Access) -> AccessAdmin:
        self.guests = [Guest(self, access, f"guest{number}", self.partitions) for number in range(2)]
        access.begin([STEADY, CHURNED], self.guests)
        self.start(self.loop.outside, Cuts(self, access).run())
        return AccessAdmin(self, access, self.guests, self.partitions)

    def _watch_deletions(self) -> None:
        """Record when a topic is deleted, as the metadata do it."""
        delete_topic = self.server.agents.delete_topic

        async def noted(topic_id: Any) -> None:
            topic = self.server.database.topics.get(topic_id)
            await delete_topic(topic_id)
            if topic is not None:
                self.deleted_ms[topic.name] = self.loop.now_ms

        self.server.agents.delete_topic = noted  # type: ignore[method-assign]

    def _heal(self) -> None:
        self.note("world", "heals")
        self.healed_ms = self.loop.now_ms
        self.faults.heal()
        for seat in self.seats:
            seat.heal()

    async def _until(self, what: str, missing: Callable[[], list[str]]) -> None:
        deadline_ms = self.loop.now_ms + SETTLE_MS_MAX
        while missing() and not self.violations:
            if self.loop.now_ms > deadline_ms:
                self.violation(f"not {what} though nothing fails: {', '.join(missing())}")
            await asyncio.sleep(0.02)
        self.note("world", what)

    def _ends_of(self, snapshot: Any) -> dict[TopicPartition, int]:
        ends = {mark.partition_id: mark.high_watermark for mark in snapshot.watermarks}
        return {
            (topic.name, number): ends[id_]
            for topic in snapshot.topics
            for number, id_ in enumerate(topic.partition_ids)
        }

    def check(self) -> None:
        """The checks of a run that came to its end."""
        self.violations += finish(checks.check_invariants(self.server, self.stores, has_merges=self.has_merges))
        if self.violations:
            return
        truth = finish(checks.read_truth(self.server, self.stores))
        self.violations += checks.check_clients(truth, self.book, self.deleted_ms)
        for guest in self.guests:
            guest.check_stored(
                {(place, stored.values): stored.offset for place, batches in truth.items() for stored in batches}
            )
        if self.transactions is not None:
            self.violations += self.transactions.check(truth)
        ends = {place: end for place, end in (self._ends or {}).items() if place in self.partitions}
        self.violations += checks.check_seen(truth, self.book, ends)

    # ---- inner

    def start(self, process: Process, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task whose failure is a violation."""
        task = process.spawn(coroutine)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.violation(f"{task.get_name()} broke", error)

    def _copy_ended(self, _: asyncio.Task[None]) -> None:
        self._copies -= 1

    def _unhandled(self, _: object, context: dict[str, Any]) -> None:
        # An exception that no task fetched is found at garbage collection, which is not part of the run.
        if "never retrieved" not in context["message"]:
            self.violation(f"unhandled: {context['message']}", context.get("exception"))

    @contextmanager
    def logged(self) -> Iterator[None]:
        """The agents' log lines go into the trace; an unexpected exception is a violation."""

        def take(_: Any, method: str, said: dict[str, Any]) -> Any:
            event = said.pop("event")
            if said.pop("exc_info", None):
                self.violation(f"an agent had an exception: {event}\n{traceback.format_exc()}")
            elif self._says_all:
                said.pop("module", None)
                self.note("  log", event, **said)
            raise structlog.DropEvent

        before = structlog.get_config()
        level = 10 if self._says_all else 40
        structlog.configure(processors=[take], wrapper_class=structlog.make_filtering_bound_logger(level))
        try:
            yield
        finally:
            structlog.configure(**before)


Reader: TypeAlias = Consumer | CommittedReader


class Auditor(Consumer):
    """Reads everything through one agent, after all is healed."""

    part_bytes_max = (200, 1 << 20)

    def __init__(self, world: World, address: str, partitions: list[TopicPartition]) -> None:
        super().__init__(world, f"auditor {address}", partitions)
        self._address = address

    async def dial(self, address: str = "") -> Line:
        return await super().dial(address or self._address)


def has_kinds(seed: int) -> bool:
    """Whether the seed has producers that wait, and trickles."""
    world = World(seed)
    world.loop.end()
    return world.has_kinds


def run_seed(seed: int, *, says_all: bool = False, planted: str = "") -> Outcome:
    """One run from its seed. Never raises for an error of the run: that is in the outcome."""
    world = World(seed, says_all=says_all)
    watched = world.transactions.watched() if world.transactions is not None else nullcontext()
    with world.logged(), hedges.figures_of_a_short_run(), seals.tokens_of(world.tokens_max), watched:
        try:
            world.loop.run_until_complete(world.loop.create_task(world.run(), context=world.loop.outside.context))
            if not world.violations:
                world.check()
        except StuckError as error:
            world.violation(f"stuck: {error}")
        finally:
            world.loop.end()
    return Outcome(
        seed=seed,
        violations=world.violations,
        counts=world.faults.counts,
        trace=world.trace,
        callbacks=world.loop.callbacks,
        virtual_ms=world.loop.now_ms,
        planted=planted,
    )
