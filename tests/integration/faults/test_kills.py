"""`kill -9` of `siltstone dev` or of its agent, under load: every acknowledged record is there once, at the
acknowledged offset, in the order of sending. `faults/test_killed_agents.py` kills several agents on one Postgres."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from time import sleep

import pytest

from tests.fixtures.dev import COMMAND, Dev, running_dev
from tests.fixtures.faults import create_topic
from tests.fixtures.idempotent_load import LibrdkafkaWriter, Load, fresh_seed
from tests.fixtures.s3 import free_port

PARTITIONS = 4


def agent_pids(dev: Dev) -> list[int]:
    """The children of `siltstone dev` that are agents."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        try:
            stat = (entry / "stat").read_text().rpartition(")")[2].split()
            command = (entry / "cmdline").read_bytes().split(b"\0")
        except (OSError, IndexError):
            continue
        if entry.name.isdigit() and int(stat[1]) == dev.process.pid and b"agent" in command:
            found.append(int(entry.name))
    return found


def kill_stack(dev: Dev) -> None:
    dev.process.kill()


def kill_agent(dev: Dev) -> None:
    """The stack ends with it."""
    os.kill(agent_pids(dev)[0], signal.SIGKILL)
    dev.process.wait(60)


KILLS = (kill_stack, kill_agent)


def kill_and_check(tmp_path: Path, kills: Sequence[int], chance: random.Random, *, writers: int) -> None:
    data, address = tmp_path / "data", f"127.0.0.1:{free_port()}"
    load = Load(address, topic="t", partitions=PARTITIONS, writers=[LibrdkafkaWriter] * writers)
    with ExitStack() as stack:
        for number, kill in enumerate(kills):
            with running_dev(data, "--listen", address) as dev:
                if number == 0:
                    # before the writers, which would have it created with other partitions
                    create_topic(dev.bootstrap, "t", partitions=PARTITIONS)
                    stack.enter_context(load)
                load.until_more(50)
                sleep(chance.random())
                KILLS[kill](dev)
        with running_dev(data, "--listen", address) as dev:
            load.until_more(50)
            acknowledged = load.finish_and_check(dev.bootstrap)
    fsck = subprocess.run([*COMMAND, "fsck", "--data", str(data)], capture_output=True, text=True, timeout=120)
    assert fsck.returncode == 0, fsck.stdout + fsck.stderr
    print(f"{len(acknowledged)} acknowledged, {len(kills)} kills")


def test_a_killed_stack_loses_nothing_it_acknowledged(tmp_path: Path) -> None:
    chance = random.Random(fresh_seed())
    kill_and_check(tmp_path, [chance.choice((0, 1))], chance, writers=2)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_many_kills_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    chance = random.Random(fresh_seed())
    kill_and_check(tmp_path, chance.choices((0, 1), k=15), chance, writers=4)
