"""kill -9 of agents under idempotent producers. Agents come back at their address, at once or after their lease has
expired. Meanwhile the others take their partitions, while requests of clients are in flight."""

from __future__ import annotations

import random
from time import sleep

import pytest

from tests.fixtures.faults import AgentProcess, Processes, create_topic
from tests.fixtures.idempotent_load import (
    AiokafkaWriter,
    LibrdkafkaWriter,
    Load,
    check_fsck,
    fresh_seed,
)

PARTITIONS = 6
WRITERS = (LibrdkafkaWriter, LibrdkafkaWriter, AiokafkaWriter)
DEAD_S_MAX = 1.0


def kill_one(processes: Processes, chance: random.Random) -> AgentProcess:
    """In half of the runs its lease expires first, so that clients learn of other agents before it is back."""
    victim = chance.choice([agent for agent in processes.agents if agent.is_running])
    victim.kill()
    if chance.random() < 0.5:
        processes.postgres.end_lease(victim.port)
    return victim


def kill_at_random(processes: Processes, seed: int, *, rounds: int) -> None:
    """One run: its own topic, writers, kills, and the comparison of everything."""
    chance = random.Random(seed)
    topic = f"t{seed}"
    create_topic(processes.bootstrap, topic, partitions=PARTITIONS)
    with Load(processes.bootstrap, topic=topic, partitions=PARTITIONS, writers=WRITERS) as load:
        load.until_more(50)
        for _ in range(rounds):
            sleep(chance.random() * 0.5)
            dead = [kill_one(processes, chance)]
            if chance.random() < 0.3:
                sleep(chance.random() * 0.2)
                dead.append(kill_one(processes, chance))
            sleep(chance.random() * DEAD_S_MAX)
            for agent in dead:
                agent.begin_start()
            for agent in dead:
                agent.await_ready()
            load.until_more(50)
        acknowledged = load.finish_and_check(processes.bootstrap)
    print(f"{len(acknowledged)} records acknowledged, all where they were said to be")


def orphans(processes: Processes) -> int:
    """Objects that were stored but never committed, because a kill came in between."""
    objects = len(list((processes.store_folder / "l0").rglob("*.silt")))
    return objects - int(processes.postgres.value("SELECT count(*) FROM files"))


def kill_and_check(processes: Processes, *, agents: int, runs: int, rounds: int) -> None:
    first = fresh_seed()
    processes.start(agents)
    for seed in range(first, first + runs):
        print(f"run with seed {seed}")
        kill_at_random(processes, seed, rounds=rounds)
    check_fsck(metadata_url=processes.postgres.url, store_url=processes.store_url)
    print(f"{orphans(processes)} objects were stored and not committed when their agent was killed")


def test_killed_agents_lose_and_double_nothing(processes: Processes) -> None:
    kill_and_check(processes, agents=2, runs=1, rounds=2)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_killed_agents_lose_and_double_nothing_in_twenty_runs(processes: Processes) -> None:
    kill_and_check(processes, agents=3, runs=20, rounds=2)
