"""Three agents as processes, each with a wire of its own to Postgres, on a bucket behind a proxy; clients of both
protocols that move records about, readers that watch, and the end: everything is read, and judged.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import inf

from runtime.errors import SiltstoneError
from tests.fixtures.compactors import CompactorProcesses
from tests.fixtures.faults import Postgres, Processes, create_topic
from tests.fixtures.faulty_proxies import S3Proxy
from tests.fixtures.idempotent_load import check_fsck
from tests.fixtures.postgres import AGENT_ROLE, as_role
from tests.fixtures.unsteady_proxy import UnsteadyProxy
from tests.fixtures.waiting import wait_until
from tests.integration.faults.transactions import first_protocol, second_protocol
from tests.integration.faults.transactions.asking import PATIENCE_S, Asking
from tests.integration.faults.transactions.fetching import COMMITTED, UNCOMMITTED, WholeLog, bounds_of
from tests.integration.faults.transactions.history import Bounds, Kept, Log, Place
from tests.integration.faults.transactions.judge import outcome_of, violations
from tests.integration.faults.transactions.nemesis import Reach
from tests.integration.faults.transactions.plan import LEFT, PARTITIONS, RIGHT, Plan, places_of
from tests.integration.faults.transactions.readers import Crew, HandReader, LibrdkafkaReader, read_all, until_at_end

AGENTS = 3
TIMEOUT_MS = 12_000
"""Of transactions: the longest faults outlast it."""
DRAINED_S_MAX = 120
"""Until every record is moved on, after the last fault: sessions and transactions may have to time out first."""
STABLE_S_MAX = 60
GRACE = {"gc_grace_ms": 2_000}
"""Agents and compactors need the same."""
SETTINGS = {"produce_linger_ms": 100, "group_initial_rebalance_delay_ms": 200, "group_min_session_timeout_ms": 1_000}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """Who speaks which protocol."""

    sources: tuple[int, ...]
    right: int
    """Those that move records from left to right."""
    left: int

    @property
    def protocols(self) -> set[int]:
        return {*self.sources, self.right, self.left}


BOTH = Mix(sources=(1, 2), right=1, left=2)
TURNED = Mix(sources=(1, 2), right=2, left=1)
FIRST = Mix(sources=(1, 1), right=1, left=1)
SECOND = Mix(sources=(2, 2), right=2, left=2)
ENDS_COUNTED = {1: "first: committed", 2: "second: committed"}


@dataclass(frozen=True, slots=True)
class Seated:
    is_source: bool
    join: Callable[[], object]
    doing: Callable[[], str]


class Clients:
    """Everybody who writes, and everybody who reads."""

    def __init__(self, plan: Plan, crew: Crew, mix: Mix, chance: random.Random) -> None:
        self._plan, self._crew, self._mix, self._chance = plan, crew, mix, chance
        self._seated: list[Seated] = []
        self.groups = {LEFT: "rightwards", RIGHT: "leftwards"}
        """By the topic that the group reads."""
        for number, protocol in enumerate(mix.sources):
            self._seat_source(protocol, f"source-{number}")
        self._seat_movers(mix.right, LEFT, RIGHT)
        self._seat_movers(mix.left, RIGHT, LEFT)
        self._watching = LibrdkafkaReader(plan, "librdkafka")
        self._watching.start()
        self._by_hand = [
            HandReader(plan, name, self._own_chance(), isolation=isolation)
            for name, isolation in (("by hand", COMMITTED), ("by hand, of everything", UNCOMMITTED))
        ]
        for reader in self._by_hand:
            crew.start(reader.run())

    def until_more(self, count: int) -> None:
        """Until clients of each protocol have committed so many more transactions."""
        before = self._plan.history.counts
        kinds = [ENDS_COUNTED[protocol] for protocol in self._mix.protocols]

        def enough() -> bool:
            now = self._plan.history.counts
            assert not self._plan.history.failed, self._plan.history.failed[:3]
            return all(now[kind] >= before[kind] + count for kind in kinds)

        wait_until(enough, DRAINED_S_MAX, lambda: f"{before}, then {self.doing}")

    @property
    def doing(self) -> str:
        said = [each.doing() for each in self._seated]
        return f"{said} {dict(self._plan.history.counts)} {self._plan.history.failed}"

    def end_sources(self) -> None:
        self._plan.sources_end.set()
        self._join(is_source=True)

    def end_movers(self) -> None:
        self._plan.movers_end.set()
        self._join(is_source=False)

    def end_readers(self, lasts: Mapping[Place, int]) -> None:
        """When they have passed the last committed records."""
        for reader in (self._watching, *self._by_hand):
            until_at_end(reader.views, lasts)
        self._watching.stop()

    def leave(self) -> None:
        """After a failure too: no thread outlives its agents."""
        self._plan.sources_end.set()
        self._plan.movers_end.set()
        self._watching.stop()

    # ---- inside

    def _seat_source(self, protocol: int, name: str) -> None:
        if protocol == 1:
            self._begin(first_protocol.Source(self._plan, name, self._plan.sources_end, self._own_chance()))
        else:
            self._begin(second_protocol.Source(self._plan, name, self._plan.sources_end, self._own_chance()))

    def _seat_movers(self, protocol: int, topic: str, to: str) -> None:
        """Two for each topic."""
        for number in range(2):
            name, group_id, chance = f"{self.groups[topic]}-{number}", self.groups[topic], self._own_chance()
            if protocol == 1:
                self._begin(first_protocol.Mover(self._plan, name, chance, group_id=group_id, topic=topic, to=to))
            else:
                own = places_of(topic)[number::2]
                self._begin(second_protocol.Mover(self._plan, name, chance, group_id=group_id, places=own, to=to))

    def _begin(self, seat: first_protocol.Seat | second_protocol.Seat) -> None:
        is_source = isinstance(seat, first_protocol.Source | second_protocol.Source)
        if isinstance(seat, first_protocol.Seat):
            seat.start()
            self._seated.append(Seated(is_source, seat.join, lambda: f"{seat.name} {seat.doing}"))
        else:
            running = self._crew.start(seat.run())
            self._seated.append(Seated(is_source, lambda: running.result(PATIENCE_S), lambda: ""))

    def _join(self, *, is_source: bool) -> None:
        for seated in self._seated:
            if seated.is_source == is_source:
                seated.join()

    def _own_chance(self) -> random.Random:
        return random.Random(self._chance.random())


@dataclass(slots=True)
class System:
    reach: Reach
    plan: Plan
    crew: Crew
    clients: Clients
    whole: WholeLog
    store_url: str
    """Not through the proxy."""

    def finish(self, *, readers_after: int = 1) -> None:
        """Let everything come to its end, read everything, and judge it. At so many agents it is read once more from
        the start, which costs a GET for each file that is not merged."""
        asking, whole = Asking(self.plan.addresses, random.Random(0)), self.whole
        self.clients.end_sources()
        began_s = time.monotonic()
        wait_until(
            lambda: not self._waiting(asking, whole),
            DRAINED_S_MAX,
            lambda: f"{self._waiting(asking, whole)} {self.clients.doing}",
        )
        self.clients.end_movers()
        bounds: dict[tuple[str, Place], Bounds] = {}
        wait_until(lambda: self._is_stable(asking, bounds), STABLE_S_MAX, lambda: f"{bounds}")
        stable_s = time.monotonic() - began_s
        kept = self.crew.run(whole.read(), PATIENCE_S)
        self.clients.end_readers({place: last_committed(some) for place, some in kept.items()})
        ends = {place: each.end for (_, place), each in bounds.items()}
        for address in self.plan.addresses[:readers_after]:
            self.crew.run(read_all(self.plan, address, ends), PATIENCE_S)
        self._tell(kept, stable_s)
        assert not self.plan.history.failed, self.plan.history.failed[:3]
        log = Log(kept, bounds, self._moved(asking))
        self.crew.run(asking.close())
        found = violations(self.plan.history.transactions, self.plan.history.views, log)
        assert not found, f"{len(found)} violations:\n" + "\n".join(map(str, found[:20]))
        check_fsck(metadata_url=self.reach.postgres.url, store_url=self.store_url, quick=True)

    # ---- inside

    def _waiting(self, asking: Asking, whole: WholeLog) -> Mapping[Place, tuple[int, int]]:
        """Where records are not moved on yet: the group's offset, and that of the last record."""
        lasts = {place: last_committed(some) for place, some in self.crew.run(whole.read(), PATIENCE_S).items()}
        return {place: (at, lasts[place]) for place, at in self._moved(asking).items() if at <= lasts[place]}

    def _moved(self, asking: Asking) -> Mapping[Place, int]:
        found: dict[Place, int] = {}
        for topic, group_id in self.clients.groups.items():
            asked = second_protocol.committed_offsets(asking, group_id, places_of(topic))
            found |= self.crew.run(asked, PATIENCE_S)
        return found

    def _is_stable(self, asking: Asking, bounds: dict[tuple[str, Place], Bounds]) -> bool:
        """Whether readers of committed records reach the end at each agent. `bounds` gets what they say."""
        for address in self.plan.addresses:
            try:
                said = self.crew.run(bounds_of(asking, self.plan.places, address=address))
            except SiltstoneError:
                return False
            bounds.update({(address, place): each for place, each in said.items()})
        return all(each.stable == each.end for each in bounds.values())

    def _tell(self, kept: Mapping[Place, Mapping[int, Kept]], stable_s: float) -> None:
        transactions = self.plan.history.transactions.values()
        in_doubt = sum(each.asked_s < inf and not each.is_committed for each in transactions)
        print(f"{len(transactions)} transactions, {in_doubt} in doubt; all moved on and stable after {stable_s:.1f} s")
        for place, some in kept.items():
            print(f"{place}: {outcome_of(some)}")
        for what, count in sorted(self.plan.history.counts.items()):
            print(f"{count:6} {what}")


def stop_compactors(compactors: CompactorProcesses) -> None:
    """One that has begun a moment ago does not know yet how to stop."""
    for compactor in compactors.compactors:
        compactor.await_ready()
    compactors.stop()


def last_committed(kept: Mapping[int, Kept]) -> int:
    return max((offset for offset, each in kept.items() if each.is_committed), default=-1)


@contextmanager
def system(
    postgres: Postgres,
    processes: Processes,
    *,
    endpoint: str,
    store_url: str,
    mix: Mix,
    seed: int,
    compactors: CompactorProcesses | None = None,
) -> Iterator[System]:
    """`endpoint` is that of the bucket's server. With `compactors` files are merged, and deleted soon."""
    with ExitStack() as stack:
        store = stack.enter_context(S3Proxy(endpoint, seed=seed))
        processes.store_url = store_url.replace(endpoint, store.endpoint)
        wires = [stack.enter_context(UnsteadyProxy(*postgres.address)) for _ in range(AGENTS)]
        agents = [
            processes.add(metadata_url=as_role(postgres.url_through(wire.port), AGENT_ROLE), **SETTINGS, **GRACE)
            for wire in wires
        ]
        for agent in agents:
            agent.begin_start()
        for agent in agents:
            agent.await_ready()
        stack.callback(processes.stop)  # before the proxies go
        processes.until_all_know_all()
        for topic in (LEFT, RIGHT):
            create_topic(processes.bootstrap, topic, partitions=PARTITIONS)
        crew = stack.enter_context(Crew())
        plan = Plan([agent.address for agent in agents], TIMEOUT_MS)
        if compactors is not None:
            compactors.add(**GRACE).begin_start()  # nobody waits for it
            stack.callback(stop_compactors, compactors)
        clients = Clients(plan, crew, mix, random.Random(seed))
        stack.callback(clients.leave)
        whole = WholeLog(Asking(plan.addresses, random.Random(seed)), plan.places)
        crew.start(whole.follow())
        working = () if compactors is None else compactors.compactors
        yield System(Reach(postgres, agents, wires, store, working), plan, crew, clients, whole, store_url)
