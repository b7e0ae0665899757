"""An erasure of 10,000 keys, spread over the files of a bucket of 1 GiB: done, verified, its cost printed. Another is
killed on its way again and again."""

from __future__ import annotations

import asyncio
import hmac
import json
import random
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from metadata.contract.files import FileState
from metadata.contract.store import MetadataStore
from metadata.erasures.contract import ErasureStage
from metadata.urls import open_metadata
from runtime.clock import SystemClock
from runtime.metrics import Metrics
from siltstone.cli import main
from siltstone.kafka.client import KafkaClient, connected
from siltstone.ops.erasure.request import hash_of
from siltstone.ops.fsck import check_system
from storage.local import LocalStore
from storage.wrappers.metered import Metered
from tests.fixtures.agents import Dial, StartAgent
from tests.fixtures.compactors import CompactorProcesses, StartCompactor
from tests.fixtures.faults import Processes
from tests.fixtures.idempotent_load import check_fsck
from tests.fixtures.waiting import until, wait_until
from wire.records import NewRecord, build_batch

MIB = 1 << 20
PARTITIONS, BATCHES, RECORDS, VALUE_BYTES = 4, 1_200, 900, 1_000
KEYS, ERASED, FILES_MIN = 108_000, 10_000, 50
KILLS = 6
SPREAD: dict[str, Any] = {
    "output_bytes": 20 * MIB,
    "l1_runs_min": 1_000,
    "l2_runs_min": 1_000,
    "mostly_dead_fraction": 2.0,
    "gc_grace_ms": 5_000,
    "orphan_age_ms": 60_000,
    "job_limit_base_ms": 60_000,
    "erase_interval_ms": 500,
}


def key(number: int) -> bytes:
    return b"person-%06d" % number


def erased() -> list[bytes]:
    """Every tenth key of the first 100,000, so that nearly every batch has some."""
    return [key(number) for number in range(0, KEYS, KEYS // ERASED)][:ERASED]


async def fill(clients: Sequence[KafkaClient], chance: random.Random) -> None:
    """A client writes to each partition."""
    await clients[0].create_topic("visits", partitions=PARTITIONS, configs={"retention.ms": "-1"})

    async def write(partition: int) -> None:
        for number in range(partition, BATCHES, PARTITIONS):
            first = number * RECORDS
            records = [
                NewRecord(1_700_000_000_000, key((first + at) % KEYS), chance.randbytes(VALUE_BYTES))
                for at in range(RECORDS)
            ]
            await clients[partition].produce("visits", partition, await asyncio.to_thread(build_batch, records))

    await asyncio.gather(*map(write, range(PARTITIONS)))


async def live_levels(metadata: MetadataStore) -> list[int]:
    files = await metadata.operators.files(limit=10_000)
    return [file.level for file in files if file.state is FileState.LIVE]


async def run(*words: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, main, ["erase", *words])


@pytest.mark.soak
@pytest.mark.timeout(1_500)
async def test_ten_thousand_keys_leave_a_gibibyte(
    postgres_url: str, start_agent: StartAgent, start_compactor: StartCompactor, dial: Dial, tmp_path: Path
) -> None:
    # given 1 GiB in at least 50 files of L1, each with some of the keys
    metadata = open_metadata(postgres_url)
    await metadata.open()
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    agent = await start_agent(store=LocalStore(tmp_path / "objects"), metadata=metadata, gc_grace_ms=5_000)
    await fill([await dial.kafka(agent.address) for _ in range(PARTITIONS)], random.Random(seed))
    metrics = Metrics()
    store = Metered(LocalStore(tmp_path / "objects"), metrics, SystemClock())
    running = await start_compactor(store=store, metadata=metadata, **SPREAD)

    async def is_leveled() -> bool:
        return set(await live_levels(metadata)) == {1}

    await until(is_leveled, timeout_s=300)
    files = await live_levels(metadata)
    size = sum(path.stat().st_size for path in (tmp_path / "objects" / "l1").rglob("*.silt"))
    assert len(files) >= FILES_MIN and size >= 1_000 * MIB
    keys_file = tmp_path / "keys.txt"
    keys_file.write_bytes(b"\n".join(erased()) + b"\n")
    places = ["--metadata", postgres_url, "--object-store", (tmp_path / "objects").as_uri()]
    before, began = cost(metrics), time.monotonic()
    # when
    words = ["visits", "--keys-file", str(keys_file), "--yes", "--wait", "--timeout", "900", "--json"]
    done = await run("request", *words, *places)
    # then
    assert done.exit_code == 0, done.output
    took_s = time.monotonic() - began
    spent = dict(cost(metrics) - before)
    state = json.loads(done.stdout)
    assert (state["stage"], state["marks"]) == ("done", ERASED * PARTITIONS)
    files_seen = state["report"]["files"]
    assert len([each for each in files_seen if each["was_live"] and each["level"]]) >= FILES_MIN
    began = time.monotonic()
    verified = await run("verify", "1", *places, "--json")
    verify_s = time.monotonic() - began
    assert verified.exit_code == 0, verified.output
    found = json.loads(verified.stdout)
    assert found["is_clean"] and found["keys"] == ERASED
    assert found["records"] == BATCHES * RECORDS * (KEYS - ERASED) // KEYS
    report = tmp_path / "report.json"
    shown = await run("status", "1", "--report", str(report), *places)
    assert shown.exit_code == 0, shown.output
    check_report(report, erased()[0])
    findings = await check_system(metadata, store, quick=False, progress=lambda _done, _all: None)
    assert [violation for each in findings for violation in each.violations] == []
    print(f"{size / MIB:.0f} MiB in {len(files)} files, {ERASED} keys: erased in {took_s:.0f} s, {spent}")
    print(f"verified in {verify_s:.0f} s: {found['objects']} objects, {found['read_bytes'] / MIB:.0f} MiB")
    await agent.agent.stop()
    await running.compactor.stop()  # before its metadata store is closed, or it would connect again
    await metadata.close()


def progress(processes: Processes) -> tuple[str, int]:
    """The stage of the erasure, and how many of its rewrites are committed."""
    [row] = processes.postgres.query(
        """SELECT stage, (SELECT count(*) FROM merge_jobs WHERE kind = 'erase' AND state = 'done') AS rewrites
        FROM erasures"""
    )
    return row["stage"], row["rewrites"]


@pytest.mark.soak
@pytest.mark.timeout(1_500)
def test_it_ends_though_every_compactor_but_the_last_is_killed(
    processes: Processes, compactors: CompactorProcesses, tmp_path: Path
) -> None:
    # given the same bucket
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    processes.start(1, gc_grace_ms=5_000)

    async def filled() -> None:
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(connected(processes.bootstrap)) for _ in range(PARTITIONS)]
            await fill(clients, chance)

    asyncio.run(filled())
    compactors.start(1, **SPREAD)
    compactors.until_all_is_leveled(300)
    compactors.stop()
    files = processes.postgres.value("SELECT count(*) FROM files WHERE state = 'live'")
    assert files >= FILES_MIN
    keys_file = tmp_path / "keys.txt"
    keys_file.write_bytes(b"\n".join(erased()) + b"\n")
    places = ["--metadata", processes.postgres.url, "--object-store", processes.store_url]
    # A wait begins the erasure at once. It ends with an error, and the erasure goes on without it.
    words = ["visits", "--keys-file", str(keys_file), "--yes", "--wait", "--timeout", "0"]
    requested = CliRunner().invoke(main, ["erase", "request", *words, *places])
    assert requested.exit_code == 1 and "erasure 1 is not done after 0 s" in requested.stderr, requested.output
    # when each compactor is killed a moment after it committed some rewrites, and so is the one that would end it
    killed: list[tuple[str, int]] = []
    for at in [0, *range(1, files, files // KILLS), files * 2]:
        doomed = compactors.start(1, **SPREAD)[0]
        wait_until(lambda at=at: progress(processes)[1] >= at or progress(processes)[0] != ErasureStage.ERASING, 600)
        time.sleep(chance.random())
        doomed.kill()
        compactors.end_leases(doomed.node_id)
        killed.append(progress(processes))
        if killed[-1][0] == ErasureStage.DONE:
            break
    # then the last one ends what they began
    compactors.start(1, **SPREAD)
    wait_until(lambda: progress(processes)[0] == ErasureStage.DONE, 600)
    print("killed at (stage, rewrites committed):", *killed)
    assert len([each for each in killed if each[0] == ErasureStage.ERASING]) >= KILLS
    verified = CliRunner().invoke(main, ["erase", "verify", "1", *places, "--json"])
    assert verified.exit_code == 0, verified.output
    found = json.loads(verified.stdout)
    assert found["is_clean"] and found["keys"] == ERASED
    assert found["records"] == BATCHES * RECORDS * (KEYS - ERASED) // KEYS
    report = tmp_path / "report.json"
    shown = CliRunner().invoke(main, ["erase", "status", "1", "--report", str(report), *places])
    assert shown.exit_code == 0, shown.output
    check_report(report, erased()[0])
    check_fsck(metadata_url=processes.postgres.url, store_url=processes.store_url)


def check_report(path: Path, one: bytes) -> None:
    report = json.loads(path.read_bytes())
    secret = bytes.fromhex(path.with_name(f"{path.name}.secret").read_text())
    digest = hmac.digest(secret, hash_of(one), "sha256").hex()
    assert all(digest in [mark[0] for mark in marks] for marks in report["keyed_marks"].values())
    assert report["account"]["listing"]["objects"] >= FILES_MIN and report["deadline_kept"]


def cost(metrics: Metrics) -> Counter[str]:
    """Requests and bytes so far, by operation."""
    found: Counter[str] = Counter()
    for family in metrics.registry.collect():
        for sample in family.samples:
            if sample.name == "siltstone_object_requests_total":
                found[sample.labels["op"]] += round(sample.value)
            elif sample.name == "siltstone_object_bytes_total":
                found[f"{sample.labels['op']} bytes"] += round(sample.value)
    return found
