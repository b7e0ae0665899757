"""Compactors killed in the middle of an erasure, as processes, on a real Postgres: the next one goes on."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from click.testing import CliRunner

from metadata.erasures.contract import ErasureStage, KeyMark, NewErasure
from metadata.postgres.driver import open_connection
from metadata.urls import open_metadata
from siltstone.cli import main
from siltstone.kafka.client import connected
from tests.fixtures.compactors import CompactorProcess, CompactorProcesses
from tests.fixtures.erasures import hash_of
from tests.fixtures.faults import Processes, create_topic
from tests.fixtures.idempotent_load import check_fsck
from tests.fixtures.waiting import wait_until
from wire.records import NewRecord, build_batch

ADA, SECRET = b"ada", b"what-nobody-may-find-again"
QUIET = {"l1_runs_min": 1000, "l2_runs_min": 1000, "mostly_dead_fraction": 1.0}
FILES = 6

REWRITES_DONE = "SELECT count(*) FROM merge_jobs WHERE kind = 'erase' AND state = 'done'"
DEAD_FILES = "SELECT count(*) FROM files WHERE state = 'dead' AND level >= $1"
WAITING = "datname = current_database() AND wait_event_type = 'Lock'"


async def written(bootstrap: str) -> None:
    async with connected(bootstrap) as client:
        for number in range(FILES):
            records = [(ADA, SECRET + b"." * 100_000), (b"bea", b"%d" % number)]
            now_ms = int(time.time() * 1000)
            await client.produce("t", 0, build_batch([NewRecord(now_ms, *each) for each in records]))


async def requested(metadata_url: str) -> int:
    metadata = open_metadata(metadata_url)
    await metadata.open()
    try:
        [topic] = [each for each in await metadata.agents.list_topics() if each.name == "t"]
        return await metadata.erasures.request_erasure(
            NewErasure(
                topic_id=topic.topic_id,
                marks={0: [KeyMark(hash_of(ADA), 2 * FILES)]},
                deadline_ms=600_000,
                secret=b"s" * 32,
            )
        )
    finally:
        await metadata.close()


def bytes_in(processes: Processes) -> bool:
    """Whether a file of the store's directory holds the secret, half-written ones included."""
    return any(SECRET in path.read_bytes() for path in processes.store_folder.rglob("*") if path.is_file())


@contextmanager
def commits_of_merges_held(processes: Processes) -> Generator[None]:
    """Merges run, and their commits wait for a lock. At the end those that waited are rolled back."""
    with asyncio.Runner() as runner:
        holder = runner.run(
            open_connection(processes.postgres.url, connect_timeout_s=10, command_timeout_s=60, settings={})
        )
        runner.run(holder.execute("BEGIN; LOCK TABLE extents IN SHARE MODE"))
        try:
            yield
        finally:
            processes.postgres.query(f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE {WAITING}")
            runner.run(holder.close())


def until_done(processes: Processes, number: int) -> Mapping[str, Any]:
    """Wait until the erasure is done, and look for the secret in the raw bytes and as a user would. Returns what the
    report says."""
    done = "SELECT count(*) FROM erasures WHERE stage = $1 AND erasure_id = $2"
    wait_until(lambda: processes.postgres.value(done, ErasureStage.DONE.value, number) == 1, 60)
    assert not bytes_in(processes)
    places = ["--metadata", processes.postgres.url, "--object-store", processes.store_url]
    verified = CliRunner().invoke(main, ["erase", "verify", str(number), *places, "--json"])
    assert verified.exit_code == 0, verified.output
    found = json.loads(verified.stdout)
    assert (found["is_clean"], found["keys"], found["records"]) == (True, 1, FILES)
    report = processes.store_folder.with_name("report.json")
    shown = CliRunner().invoke(main, ["erase", "status", str(number), "--report", str(report), *places])
    assert shown.exit_code == 0, shown.output
    check_fsck(metadata_url=processes.postgres.url, store_url=processes.store_url)
    return json.loads(report.read_bytes())["account"]


def stage_of(processes: Processes) -> str:
    [row] = processes.postgres.query("SELECT stage FROM erasures")
    return row["stage"]


def test_a_compactor_killed_before_a_rewrite_is_committed(processes: Processes, compactors: CompactorProcesses) -> None:
    # given records in several L1 files
    value = processes.postgres.value
    [first] = leveled(processes, compactors)
    wait_until(lambda: value(DEAD_FILES, 0) == 0)  # those of L0
    # when it is killed while the commit of a rewrite waits
    with commits_of_merges_held(processes):
        number = asyncio.run(requested(processes.postgres.url))
        wait_until(lambda: value(f"SELECT count(*) FROM pg_stat_activity WHERE {WAITING}") > 0)
        first.kill()
    # then nothing was rewritten, and the next one ends the erasure
    assert value(REWRITES_DONE) == 0 and value(DEAD_FILES, 0) == 0 and bytes_in(processes)
    assert stage_of(processes) == ErasureStage.ERASING
    compactors.end_leases(first.node_id)
    compactors.start(1, **QUIET)
    report = until_done(processes, number)
    assert [each["ended"] for each in report["files"]] == ["rewritten and deleted"] * len(report["files"]) != []


def test_a_compactor_killed_after_a_rewrite_is_committed(processes: Processes, compactors: CompactorProcesses) -> None:
    # given records in several L1 files, whose dead files are kept
    value = processes.postgres.value
    [first] = leveled(processes, compactors, janitor_interval_ms=600_000)
    # when it is killed between the commit and the deletion of the files that it replaced
    number = asyncio.run(requested(processes.postgres.url))
    wait_until(lambda: value(REWRITES_DONE) > 0)
    first.kill()
    # then the old bytes are still there, and the next one ends the erasure
    assert value(DEAD_FILES, 1) > 0 and bytes_in(processes)
    assert stage_of(processes) == ErasureStage.ERASING
    compactors.end_leases(first.node_id)
    compactors.start(1, **QUIET)
    until_done(processes, number)


def test_a_compactor_killed_before_the_end_is_written(processes: Processes, compactors: CompactorProcesses) -> None:
    # given records in several L1 files
    value = processes.postgres.value
    [first] = leveled(processes, compactors)
    # when it is killed after the last file of old bytes has gone
    number = asyncio.run(requested(processes.postgres.url))
    wait_until(lambda: value(REWRITES_DONE) > 0 and value(DEAD_FILES, 0) == 0)
    first.kill()
    # then nobody has said so yet, and the next one does
    assert stage_of(processes) == ErasureStage.ERASING and not bytes_in(processes)
    compactors.end_leases(first.node_id)
    compactors.start(1, **QUIET)
    report = until_done(processes, number)
    # Only the compactor with the duty saw the files go.
    assert report["files"] == [] and report["files_seen_since_ms"] > report["created_ms"]


def leveled(processes: Processes, compactors: CompactorProcesses, **settings: int) -> Sequence[CompactorProcess]:
    """One compactor, and the records in its L1 files."""
    processes.start(1, gc_grace_ms=2_000)
    create_topic(processes.bootstrap, "t", partitions=1)
    # Merges erase without the duty, which ends the erasure; this compactor looks at it too seldom for that.
    started = compactors.start(1, **QUIET, erase_interval_ms=600_000, **settings)
    asyncio.run(written(processes.bootstrap))
    compactors.until_all_is_leveled()
    assert bytes_in(processes)
    return started
