"""Compactors that are killed or frozen in the middle of their work, under load: no record is lost, doubled or moved, no
merge is committed twice, and at the end the bucket contains exactly the files that the metadata names."""

from __future__ import annotations

import random
import re
from time import monotonic, sleep

import pytest
from asyncpg.exceptions import LockNotAvailableError

from tests.fixtures.compactors import CompactorProcess, CompactorProcesses
from tests.fixtures.faults import Processes, create_topic
from tests.fixtures.idempotent_load import LibrdkafkaWriter, Load, check_fsck, fresh_seed
from tests.fixtures.waiting import wait_until

PARTITIONS = 3
GRACE = {"gc_grace_ms": 2_000}
FREEZES_MAX = 300


def merges_done(processes: Processes) -> int:
    return int(processes.postgres.value("SELECT count(*) FROM merge_jobs WHERE state = 'done'"))


def kill_at_random(processes: Processes, compactors: CompactorProcesses, seed: int, *, kills: int) -> None:
    """One run: its own topic, writers, kills, and the comparison of everything."""
    chance = random.Random(seed)
    topic = f"t{seed}"
    create_topic(processes.bootstrap, topic, partitions=PARTITIONS)
    with Load(processes.bootstrap, topic=topic, partitions=PARTITIONS, writers=[LibrdkafkaWriter] * 2) as load:
        for _ in range(kills):
            done = merges_done(processes)
            wait_until(lambda done=done: merges_done(processes) >= done + 2, 60)
            sleep(chance.random() * 0.3)
            victim = chance.choice(compactors.compactors)
            node_id = victim.node_id
            victim.kill()
            compactors.end_leases(node_id)
            victim.start()
        load.until_more(20)
        acknowledged = load.finish_and_check(processes.bootstrap)
    print(f"{len(acknowledged)} records acknowledged, all where they were said to be")


def kill_and_check(processes: Processes, compactors: CompactorProcesses, *, runs: int, kills: int) -> None:
    first = fresh_seed()
    processes.start(1, **GRACE)
    compactors.start(2)
    for seed in range(first, first + runs):
        print(f"run with seed {seed}")
        kill_at_random(processes, compactors, seed, kills=kills)
    compactors.until_all_is_leveled()
    compactors.until_nothing_is_leaked()
    check_fsck(metadata_url=processes.postgres.url, store_url=processes.store_url)
    again = processes.postgres.value("SELECT count(*) FROM merge_jobs WHERE epoch > 1")
    orphans = processes.postgres.value("SELECT count(*) FROM files WHERE state = 'aborted'")
    print(f"{merges_done(processes)} merges done, {again} of them begun anew; {orphans} orphans deleted")


def test_killed_compactors_lose_double_and_leak_nothing(processes: Processes, compactors: CompactorProcesses) -> None:
    kill_and_check(processes, compactors, runs=1, kills=1)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_killed_compactors_lose_double_and_leak_nothing_in_twenty_runs(
    processes: Processes, compactors: CompactorProcesses
) -> None:
    kill_and_check(processes, compactors, runs=20, kills=4)


def job_held_at_rest(processes: Processes, node_id: int) -> int | None:
    """The running job of a frozen compactor, unless a transaction holds rows that `end_leases` must change."""
    query = processes.postgres.query
    try:
        query("SELECT FROM compactors WHERE node_id = $1 FOR UPDATE NOWAIT", node_id)
        query("SELECT FROM duties WHERE holder = $1 FOR UPDATE NOWAIT", node_id)
        jobs = query(
            "SELECT job_id FROM merge_jobs WHERE holder = $1 AND state = 'running' ORDER BY job_id FOR UPDATE NOWAIT",
            node_id,
        )
    except LockNotAvailableError:
        return None
    return jobs[0]["job_id"] if jobs else None


def frozen_in_a_merge(processes: Processes, compactor: CompactorProcess) -> int:
    """Freeze the compactor again and again until it is frozen while it holds a job. Returns the job."""
    node_id = compactor.node_id
    for attempt in range(FREEZES_MAX):
        compactor.freeze()
        sleep(0.03)  # for Postgres to end the statement that was on its way
        job_id = job_held_at_rest(processes, node_id)
        if job_id is not None:
            return job_id
        compactor.thaw()
        sleep(0.02 * (1 + attempt % 10))  # on a busy machine 20 ms are too short to begin a merge
    raise AssertionError(f"frozen {FREEZES_MAX} times, never in a merge")


def outputs_of(processes: Processes, job_id: int) -> set[int]:
    """The files that a job wrote; later merges take them away."""
    return {row["file_id"] for row in processes.postgres.query("SELECT file_id FROM files WHERE job_id = $1", job_id)}


def ends_of_merge(compactor: CompactorProcess, job_id: int) -> list[str]:
    """How the compactor's own try at a merge that is another's ended: lost, or, if its inputs are gone by then, failed
    or given back."""
    ends = r"merge (lost|failed on an input|failed|given back|refused) .*\bjob=(\d+)"
    return [how for how, which in re.findall(ends, compactor.log) if int(which) == job_id]


def test_a_compactor_that_slept_past_its_lease_commits_nothing(
    processes: Processes, compactors: CompactorProcesses
) -> None:
    processes.start(1, **GRACE)
    create_topic(processes.bootstrap, "t", partitions=PARTITIONS)
    [sleeper] = compactors.start(1)
    with Load(processes.bootstrap, topic="t", partitions=PARTITIONS, writers=[LibrdkafkaWriter] * 2) as load:
        load.until_more(50)
        job_id = frozen_in_a_merge(processes, sleeper)
        compactors.end_leases(sleeper.node_id)
        # given: another compactor takes the job over and finishes it
        [heir] = compactors.start(1)
        wait_until(
            lambda: processes.postgres.value("SELECT state FROM merge_jobs WHERE job_id = $1", job_id) == "done", 60
        )
        row = processes.postgres.query("SELECT holder, epoch FROM merge_jobs WHERE job_id = $1", job_id)[0]
        assert (row["holder"], row["epoch"]) == (heir.node_id, 2)
        outputs = outputs_of(processes, job_id)
        # when the frozen compactor wakes up with the merge in progress
        sleeper.thaw()
        wait_until(lambda: ends_of_merge(sleeper, job_id), said=lambda: sleeper.log[-2_000:])
        # then: it has committed nothing of that merge, and continues with other work
        assert outputs_of(processes, job_id) <= outputs
        done = sleeper.metric("merges_total", outcome="done")
        wait_until(lambda: sleeper.metric("merges_total", outcome="done") > done, 60)
        load.finish_and_check(processes.bootstrap)
    compactors.until_all_is_leveled()
    compactors.until_nothing_is_leaked()
    check_fsck(metadata_url=processes.postgres.url, store_url=processes.store_url)


@pytest.mark.soak
def test_a_killed_compactor_is_replaced_when_its_lease_runs_out_by_itself(
    processes: Processes, compactors: CompactorProcesses
) -> None:
    processes.start(1, **GRACE)
    create_topic(processes.bootstrap, "t", partitions=PARTITIONS)
    [victim] = compactors.start(1)
    [heir] = compactors.start(1)
    with Load(processes.bootstrap, topic="t", partitions=PARTITIONS, writers=[LibrdkafkaWriter]) as load:
        load.until_more(50)
        job_id = frozen_in_a_merge(processes, victim)
        victim.kill()
        began = monotonic()
        wait_until(
            lambda: processes.postgres.value("SELECT state FROM merge_jobs WHERE job_id = $1", job_id) == "done", 60
        )
        assert monotonic() - began < 30
        load.finish_and_check(processes.bootstrap)
    assert heir.metric("merges_total", outcome="done") > 0
