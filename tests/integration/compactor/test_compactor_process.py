"""`siltstone compactor` as operators run it, beside agents, on a real Postgres, over a directory and over S3."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from siltstone.cli import main
from siltstone.kafka.client import connected
from tests.fixtures.compactors import CompactorProcess, CompactorProcesses
from tests.fixtures.dev import COMMAND
from tests.fixtures.faults import Processes, create_topic
from tests.fixtures.idempotent_load import LibrdkafkaWriter, Load, check_fsck, read_log
from tests.fixtures.s3 import BucketUrl
from tests.fixtures.waiting import wait_until
from wire.kernels.code_cache import cache_directory
from wire.records import NewRecord, build_batch

GRACE = {"gc_grace_ms": 2_000}


@pytest.fixture(params=[pytest.param("directory", marks=pytest.mark.soak), "s3"])
def processes_on(request: pytest.FixtureRequest, processes: Processes) -> Processes:
    if request.param == "s3":
        s3_url: BucketUrl = request.getfixturevalue("s3_url")
        processes.store_url = s3_url()
    return processes


def jobs(processes: Processes, *words: str) -> list[dict[str, Any]]:
    """The output of `siltstone jobs list --json`."""
    done = CliRunner().invoke(
        main, ["jobs", "list", "--metadata", processes.postgres.url, "--limit", "10000", "--json", *words]
    )
    assert done.exit_code == 0, done.output
    return json.loads(done.output)


def live_levels(processes: Processes) -> set[int]:
    return {row["level"] for row in processes.postgres.query("SELECT DISTINCT level FROM files WHERE state = 'live'")}


def until_leveled(processes: Processes, *levels: int) -> None:
    """Wait until L0 is empty and each of `levels` has a file."""
    wait_until(lambda: (found := live_levels(processes)) and 0 not in found and set(levels) <= found, 60)


def total(compactors: Sequence[CompactorProcess], name: str, **labels: str) -> float:
    return sum(each.metric(name, **labels) for each in compactors)


def test_two_compactors_level_and_merge_under_load_one_plans_and_every_record_stays_where_it_was_acknowledged(
    processes_on: Processes, compactors: CompactorProcesses
) -> None:
    processes = processes_on
    processes.start(1, **GRACE)
    create_topic(processes.bootstrap, "t", partitions=3)
    both = compactors.start(2)
    with Load(processes.bootstrap, topic="t", partitions=3, writers=[LibrdkafkaWriter] * 2) as load:
        wait_until(lambda: all(total([each], "merges_total", outcome="done") >= 2 for each in both), 60)
        wait_until(lambda: total(both, "merges_total", kind="merge", outcome="done") >= 2, 60)
        load.until_more(100)
        load.finish_and_check(processes.bootstrap)
    until_leveled(processes, 2)
    check_fsck(metadata_url=processes.postgres.url, store_url=processes.store_url)
    wait_until(lambda: total(both, "deleted_files_total") > 10)
    assert total(both, "compactor_duty", duty="plan") == 1
    assert total(both, "merges_total", outcome="failed") == total(both, "merges_total", outcome="lost") == 0
    assert total(both, "compactor_errors_total") == 0
    kinds = {(job["kind"], job["state"], job["fraction"]) for job in jobs(processes)}
    assert {("level", "done", 1.0), ("merge", "done", 1.0)} <= kinds
    # and people are shown the same
    place = ["--metadata", processes.postgres.url]
    listed = CliRunner().invoke(main, ["jobs", "list", *place])
    assert "################ 100%" in listed.output and "level" in listed.output
    first = jobs(processes)[-1]
    shown = CliRunner().invoke(main, ["jobs", "show", str(first["job_id"]), *place])
    assert shown.exit_code == 0 and first["reason"] in shown.output and "result: records in" in shown.output
    # when the compactor that plans is told to stop, it stops and the other one plans
    planner = next(each for each in both if each.metric("compactor_duty", duty="plan") == 1)
    other = next(each for each in both if each is not planner)
    assert planner.stop() == 0
    assert "compactor stops" in planner.log
    wait_until(lambda: other.metric("compactor_duty", duty="plan") == 1)


async def written(bootstrap: str, batches: int) -> list[bytes]:
    """Write batches of about 100 KB, each a file of its own. Returns the values."""
    values = [b"%05d" % number + b"." * 100_000 for number in range(batches)]
    async with connected(bootstrap) as client:
        for value in values:
            await client.produce("t", 0, build_batch([NewRecord(int(time.time() * 1000), None, value)]))
    return values


def test_a_store_without_room_swaps_nothing_and_leaves_nothing_and_when_there_is_room_all_goes_on(
    processes: Processes, compactors: CompactorProcesses
) -> None:
    processes.start(1, **GRACE)
    create_topic(processes.bootstrap, "t", partitions=1)
    [compactor] = compactors.start(1)
    # given: no merge finds room for its output
    compactor.limit_files(80_000)
    values = asyncio.run(written(processes.bootstrap, 6))
    wait_until(lambda: compactor.metric("merges_total", kind="level", outcome="given_back") >= 2, 60)
    # then: the job is returned and tried again, and no part of an output is left behind
    assert live_levels(processes) == {0}
    assert processes.postgres.value("SELECT count(*) FROM merge_jobs WHERE state IN ('done', 'failed')") == 0
    assert "round failed" in compactor.log and "no space in the object directory" in compactor.log
    keys = {row["key"] for row in processes.postgres.query("SELECT key FROM files")}
    lying = (path for path in processes.store_folder.rglob("*") if path.is_file())
    assert {str(path.relative_to(processes.store_folder)) for path in lying if path.suffix == ".silt"} == keys
    compactor.limit_files(-1)
    until_leveled(processes, 1)
    compactors.until_all_is_leveled()
    compactors.until_nothing_is_leaked()
    found = read_log(processes.bootstrap, topic="t", partitions=1)
    assert [found[0, offset] for offset in range(6)] == values
    check_fsck(metadata_url=processes.postgres.url, store_url=processes.store_url)
    assert compactor.metric("merges_total", outcome="failed") == 0


def test_jobs_that_are_not_there_are_told(postgres_url: str, tmp_path: Path) -> None:
    place = ["--metadata", postgres_url]
    empty = CliRunner().invoke(main, ["jobs", "list", *place])
    assert (empty.exit_code, empty.output) == (0, "no jobs\n")
    missing = CliRunner().invoke(main, ["jobs", "show", "999999", *place])
    assert missing.exit_code == 1 and "there is no job 999999" in missing.output
    missing = CliRunner().invoke(main, ["jobs", "run", "999999", *place, "--object-store", tmp_path.as_uri()])
    assert missing.exit_code == 1 and "remedy: `siltstone jobs list` lists the jobs" in missing.output


def test_memory_is_refused_for_a_compactor_by_itself() -> None:
    command = [*COMMAND, "compactor", "--metadata", "memory://", "--object-store", "memory://"]
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert outcome.returncode == 1
    assert "error: memory:// exists only inside one process" in outcome.stderr and "remedy:" in outcome.stderr


def test_a_signal_during_the_start_ends_the_start(processes: Processes, compactors: CompactorProcesses) -> None:
    compactor = compactors.add()
    compactor.begin_start()
    compactor.begin_stop()
    assert compactor.await_end() in (0, -signal.SIGTERM)
    compactors.compactors.clear()


def test_warm_compiles_the_kernels_and_leaves() -> None:
    outcome = CliRunner().invoke(main, ["compactor", "warm"])
    assert outcome.exit_code == 0 and outcome.output.startswith("kernels are ready, after ")
    # when it is called again, then it reports that it did nothing
    again = CliRunner().invoke(main, ["compactor", "warm"])
    assert "nothing was compiled" in again.output or cache_directory() is None


def test_help_of_the_compactor_names_what_it_can_do() -> None:
    outcome = CliRunner().invoke(main, ["compactor", "--help"])
    assert outcome.exit_code == 0
    assert "simulate" in outcome.output and "warm" in outcome.output
