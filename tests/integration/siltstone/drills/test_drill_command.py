"""`siltstone drill` as a process beside a cluster under load: its exit codes, and what is left when it is stopped or
killed."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from siltstone.cli import main
from tests.fixtures.compactors import CompactorProcesses
from tests.fixtures.faults import Processes, create_topic
from tests.fixtures.idempotent_load import LibrdkafkaWriter, Load
from tests.fixtures.waiting import wait_until

PARTITIONS = 2
SCRATCH = "SELECT count(*) FROM pg_database WHERE datname LIKE 'siltstone_drill_%'"
CATALOG = {"catalog_interval_ms": 2_000, "catalog_increment_interval_ms": 300}


def options(processes: Processes) -> list[str]:
    return ["--metadata", processes.postgres.url, "--object-store", processes.store_url]


def begin_drill(processes: Processes, log: Path) -> subprocess.Popen[str]:
    with log.open("w") as said:
        return subprocess.Popen(
            [sys.executable, "-m", "siltstone", "drill", *options(processes)],
            stdout=said,
            stderr=subprocess.STDOUT,
            text=True,
        )


def drilled(processes: Processes, *words: str, code: int = 0) -> dict[str, Any]:
    result = CliRunner().invoke(main, ["drill", *options(processes), "--json", *words])
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def test_a_drill_beside_a_load_that_is_stopped_killed_and_run_again(
    processes: Processes, compactors: CompactorProcesses, tmp_path: Path
) -> None:
    [agent] = processes.start(1)
    [compactor] = compactors.start(1, **CATALOG)
    create_topic(agent.address, "t", partitions=PARTITIONS)
    load = Load(agent.address, topic="t", partitions=PARTITIONS, writers=[LibrdkafkaWriter])
    value = processes.postgres.value
    with load:
        load.until_more(500)
        wait_until(lambda: list((processes.store_folder / "catalog").glob("increments/*")))
        # when one is stopped in its midst, then it cleans up
        stopped = begin_drill(processes, tmp_path / "stopped.log")
        wait_until(lambda: value(SCRATCH) == 1)
        stopped.send_signal(signal.SIGTERM)
        assert stopped.wait(60) == 130, (tmp_path / "stopped.log").read_text()
        assert value(SCRATCH) == 0
        assert "the scratch database is dropped" in (tmp_path / "stopped.log").read_text()
        # when one is killed, then its database stays
        killed = begin_drill(processes, tmp_path / "killed.log")
        wait_until(lambda: value(SCRATCH) == 1)
        killed.kill()
        killed.wait()
        wait_until(lambda: value("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = 20945") == 0)
        assert value(SCRATCH) == 1
        # and the next one drops it, and does its own work
        found = drilled(processes)
        assert value(SCRATCH) == 0
    assert found["fit"] and found["lost_seconds"] < 60
    assert found["compared"]["records"]["live"] >= 500
    load.finish_and_check(agent.address)

    # when nothing is written any more, then nothing is lost
    def nothing() -> bool:
        return drilled(processes)["lost_records"] == 0

    wait_until(nothing)
    assert drilled(processes, "--lost-seconds-max", "0")["fit"]
    # and an idle cluster has no young increment, which is said
    said = CliRunner().invoke(main, ["drill", *options(processes)]).stdout
    idle = r"recovery point: 0\.0 s, 0 records; .* increment .*, and no record was committed after it\n"
    assert re.search(idle, said), said
    # and without a catalogue it says so
    compactor.stop()
    for name in ("snapshots", "increments"):
        for path in sorted((processes.store_folder / "catalog" / name).rglob("*"), reverse=True):
            path.unlink() if path.is_file() else path.rmdir()
    result = CliRunner().invoke(main, ["drill", *options(processes)])
    assert result.exit_code == 1
    assert "not fit: there is no whole catalogue snapshot" in result.stdout


def test_a_drill_on_another_postgres(processes: Processes, postgres_server: str) -> None:
    [agent] = processes.start(1)
    create_topic(agent.address, "t", partitions=1)
    result = CliRunner().invoke(main, ["drill", *options(processes), "--scratch", postgres_server])
    assert result.exit_code == 1
    assert "not fit: there is no whole catalogue snapshot" in result.stdout
    assert processes.postgres.value(SCRATCH) == 0


@pytest.mark.parametrize("words", [("--scratch", "postgresql://nobody@127.0.0.1:1/x")])
def test_an_unreachable_scratch_is_an_error(processes: Processes, words: tuple[str, ...]) -> None:
    [agent] = processes.start(1)
    agent.stop()
    result = CliRunner().invoke(main, ["drill", *options(processes), *words])
    assert result.exit_code == 1
    assert "cannot connect to Postgres at 127.0.0.1:1" in result.stderr and not result.stdout
    assert "correct host and port in --scratch" in result.stderr and "metadata.url" not in result.stderr
