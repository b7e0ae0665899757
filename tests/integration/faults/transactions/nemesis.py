"""Faults of agents, of Postgres, of the way to it, and of the object store: each begins, lasts, and is healed."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from metadata.contract.leases import LEASE_MS
from storage.wrappers.faulty import Fault, FaultRule
from tests.fixtures.compactors import CompactorProcess
from tests.fixtures.faults import AgentProcess, Postgres
from tests.fixtures.faulty_proxies import S3Proxy
from tests.fixtures.unsteady_proxy import UnsteadyProxy

LONG_S = LEASE_MS / 1000 + 1.5
"""Longer than a lease."""
BAD_STORE = [
    FaultRule(fault=Fault.LOST_ANSWER, op="put", probability=0.25),
    FaultRule(fault=Fault.LOST_REQUEST, op="put", probability=0.15),
    FaultRule(fault=Fault.SLOW_DOWN, op="put", probability=0.15),
    FaultRule(fault=Fault.DELAY, op="put", probability=0.2, delay_ms=700),
    FaultRule(fault=Fault.SLOW_DOWN, op="head", probability=0.3),
    FaultRule(fault=Fault.LOST_ANSWER, op="get_range", probability=0.3),
    FaultRule(fault=Fault.SLOW_DOWN, op="get_range", probability=0.2),
]
NO_STORE = [FaultRule(fault=Fault.UNREACHABLE)]


@dataclass(slots=True)
class Reach:
    """What the nemesis can lay hands on."""

    postgres: Postgres
    agents: Sequence[AgentProcess]
    wires: Sequence[UnsteadyProxy]
    """In the order of the agents."""
    store: S3Proxy
    compactors: Sequence[CompactorProcess] = ()


Heal = Callable[[], None]
Strike = Callable[[Reach, random.Random], tuple[float, Heal]]
"""Begins a fault. Returns how long it lasts, in seconds, and how it ends."""


def _agent(reach: Reach, chance: random.Random) -> tuple[AgentProcess, UnsteadyProxy]:
    number = chance.randrange(len(reach.agents))
    return reach.agents[number], reach.wires[number]


def kill(reach: Reach, chance: random.Random) -> tuple[float, Heal]:
    """In half of the runs the others learn of it before it is back."""
    agent, _ = _agent(reach, chance)
    agent.kill()
    if chance.random() < 0.5:
        reach.postgres.end_lease(agent.port)
    return chance.random() * 3, agent.start


def kill_a_compactor(reach: Reach, chance: random.Random) -> tuple[float, Heal]:
    if not reach.compactors:
        return 0, lambda: None
    compactor = chance.choice(reach.compactors)
    compactor.kill()
    return chance.random() * 3, compactor.begin_start


def restart(reach: Reach, chance: random.Random) -> tuple[float, Heal]:
    """As in an upgrade: it drains while clients use it."""
    agent, _ = _agent(reach, chance)
    assert agent.stop() == 0
    return chance.random(), agent.start


def freeze(reach: Reach, chance: random.Random) -> tuple[float, Heal]:
    """It wakes under its lease, with what was in its sockets."""
    agent, _ = _agent(reach, chance)
    agent.freeze()
    return chance.uniform(0.5, 5), agent.thaw


def freeze_beyond_the_lease(reach: Reach, chance: random.Random) -> tuple[float, Heal]:
    agent, _ = _agent(reach, chance)
    agent.freeze()
    return LONG_S + chance.random() * 3, agent.thaw


def freeze_and_end_the_lease(reach: Reach, chance: random.Random) -> tuple[float, Heal]:
    """As `freeze_beyond_the_lease`, to the metadata store, but shorter."""
    agent, _ = _agent(reach, chance)
    agent.freeze()
    reach.postgres.end_lease(agent.port)
    return chance.uniform(3, 5), agent.thaw


def crash_postgres(reach: Reach, chance: random.Random) -> tuple[float, Heal]:
    reach.postgres.stop_at_once()
    return chance.random() * 2, reach.postgres.start


def end_sessions(reach: Reach, chance: random.Random) -> tuple[float, Heal]:
    for _ in range(chance.randint(5, 15)):
        reach.postgres.end_backends()
        time.sleep(chance.random() * 0.1)
    return 0, lambda: None


def cut_off(reach: Reach, chance: random.Random) -> tuple[float, Heal]:
    """One agent does not reach Postgres, and the others go on."""
    _, wire = _agent(reach, chance)
    wire.leave()
    return chance.uniform(1, 5), wire.steady


def hold_up(reach: Reach, chance: random.Random) -> tuple[float, Heal]:
    """What one agent says to Postgres comes late, all at once: its calls, and its heartbeats."""
    _, wire = _agent(reach, chance)
    wire.is_frozen = True
    return chance.uniform(1, 5), wire.steady


def hold_up_beyond_the_lease(reach: Reach, chance: random.Random) -> tuple[float, Heal]:
    _, wire = _agent(reach, chance)
    wire.is_frozen = True
    return LONG_S + chance.random() * 3, wire.steady


def deafen(reach: Reach, chance: random.Random) -> tuple[float, Heal]:
    """Whatever one agent, or each, asks of Postgres is in doubt."""
    wires = [_agent(reach, chance)[1]] if chance.random() < 0.6 else reach.wires
    for wire in wires:
        wire.is_deaf = True

    def heal() -> None:
        for wire in wires:
            wire.is_deaf = False

    return chance.uniform(0.2, 1.5), heal


def spoil_the_store(reach: Reach, chance: random.Random) -> tuple[float, Heal]:
    return _with_rules(reach, BAD_STORE, chance.uniform(2, 5))


def take_the_store_away(reach: Reach, chance: random.Random) -> tuple[float, Heal]:
    return _with_rules(reach, NO_STORE, chance.uniform(1, 3))


def _with_rules(reach: Reach, rules: Sequence[FaultRule], seconds: float) -> tuple[float, Heal]:
    reach.store.plan.rules = rules

    def heal() -> None:
        reach.store.plan.rules = ()

    return seconds, heal


SHORT: Sequence[Strike] = (
    kill,
    freeze_and_end_the_lease,
    crash_postgres,
    deafen,
    spoil_the_store,
)
"""Each comes once in a short run."""
ALL: Sequence[Strike] = (
    kill,
    kill_a_compactor,
    restart,
    freeze,
    freeze_beyond_the_lease,
    freeze_and_end_the_lease,
    crash_postgres,
    end_sessions,
    cut_off,
    hold_up,
    hold_up_beyond_the_lease,
    deafen,
    spoil_the_store,
    take_the_store_away,
)


BESIDE: Sequence[Strike] = (freeze, cut_off, hold_up, deafen, spoil_the_store)
"""Those that may strike while another fault lasts, at other agents."""


def strike_and_heal(reach: Reach, chance: random.Random, *strikes: Strike) -> None:
    """All at the same time. If there are several, each has agents of its own."""
    numbers = list(range(len(reach.agents)))
    chance.shuffle(numbers)
    heals: list[Heal] = []
    longest_s = 0.0
    try:
        for at, strike in enumerate(strikes):
            own = numbers[at :: len(strikes)]
            part = replace(reach, agents=[reach.agents[it] for it in own], wires=[reach.wires[it] for it in own])
            seconds, heal = strike(part, chance)
            heals.append(heal)
            longest_s = max(longest_s, seconds)
        time.sleep(longest_s)
    finally:
        for heal in reversed(heals):  # an agent that begins comes last: it may take long
            heal()
