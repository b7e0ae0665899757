"""`siltstone topics explain` and `describe` after a merge met a lost object, or batches whose records cannot be read: a
real `siltstone dev`, a file removed from its object store, a batch that no client would send."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

from metadata.contract.store import MetadataStore
from metadata.urls import open_metadata
from runtime.clock import SystemClock
from siltstone.cli import main
from siltstone.demo.stack import Stack, running_stack
from siltstone.kafka.client import connected
from tests.fixtures.record_batches import with_payload
from wire.records import NewRecord, build_batch

OPTIONS = ("--set", "produce.linger.ms=5", "--set", "gc.grace.ms=4000", "--set", "job.limit.base.ms=6000")
AT_ONCE = ("--set", "compaction.l0.wait.max.ms=100")
COMPACTED, PLAIN, ODD = "users", "orders", "odd"


def run_ok(*words: str) -> str:
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    return result.stdout


def run_json(*words: str) -> Any:
    return json.loads(run_ok(*words, "--json"))


class Damaged(NamedTuple):
    """A system that has lost the first object of `COMPACTED` and the first of `PLAIN`."""

    stack: Stack
    keys: dict[str, str]
    """By topic."""

    @property
    def data(self) -> str:
        return str(self.stack.data)

    def reasons(self, topic: str) -> list[dict[str, Any]]:
        return run_json("topics", "explain", topic, "--data", self.data)["reasons"]

    def reason(self, topic: str, code: str) -> dict[str, Any]:
        """Once it is there."""
        return until(lambda: next((each for each in self.reasons(topic) if each["code"] == code), None))


def until(look: Callable[[], Any], timeout_s: float = 60) -> Any:
    deadline = time.monotonic() + timeout_s
    while (found := look()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    return found


def values(*keys: str) -> bytes:
    return build_batch([NewRecord(1_700_000_000_000, key.encode(), b"value") for key in keys])


def same_delta_twice() -> bytes:
    """Both records have offset delta 0; the header and the CRC of the batch are valid."""
    batch = values("e", "f")
    payload = bytearray(batch[61:])
    payload[len(payload) // 2 + 3] = 0
    return with_payload(batch, bytes(payload))


async def produce(bootstrap: str, topic: str, policy: str, batches: list[bytes]) -> None:
    async with connected(bootstrap) as client:
        await client.create_topic(topic, partitions=1, configs={"cleanup.policy": policy})
        for batch in batches:
            await client.produce(topic, 0, batch)


def l0_objects(data: Path) -> set[Path]:
    return {each for each in (data / "objects" / "l0").rglob("*.silt") if each.is_file()}


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Damaged]:
    data = tmp_path_factory.mktemp("damaged") / "data"
    data.mkdir()
    lost: dict[str, Path] = {}
    with running_stack(data, SystemClock(), options=[*OPTIONS, "--compactors", "0"]) as stack:
        for topic, policy in ((COMPACTED, "compact,delete"), (PLAIN, "delete")):
            before = l0_objects(data)
            asyncio.run(produce(stack.bootstrap, topic, policy, [values("a", "b")]))
            [lost[topic]] = l0_objects(data) - before
        for path in lost.values():
            path.unlink()
        keys = {topic: str(path.relative_to(data / "objects")) for topic, path in lost.items()}
        with running_compactor(data, *OPTIONS, *AT_ONCE):
            yield Damaged(stack=stack, keys=keys)


@contextlib.contextmanager
def running_compactor(data: Path, *options: str) -> Iterator[None]:
    """A compactor beside the stack of `data`, started when it is ready and stopped at the end."""
    command = [sys.executable, "-m", "siltstone", "compactor", "--data", str(data), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline().startswith("compactor: ")
            yield
        finally:
            process.terminate()
            process.wait(60)


def test_a_lost_object_is_told_by_explain_and_describe_as_by_fsck_and_its_job(damaged: Damaged) -> None:
    key = damaged.keys[COMPACTED]
    # given a compactor that has met the damage
    reason = damaged.reason(COMPACTED, "object lost")
    # then explain names the partition, the offsets, the file and the remedy
    assert reason["partition"] == 0 and "partition 0 has offsets 0 to 1 in L0 file " in reason["says"]
    assert key in reason["says"] and "retention stops there" in reason["says"]
    assert f"`siltstone fsck --data {damaged.data}` shows what is missing (FILE-1)" in reason["remedy"]
    # and it says the same as the job and fsck
    failed = run_json("jobs", "list", "--state", "failed", "--data", damaged.data)
    assert any(
        each["error"].rstrip(".") in reason["says"] and f"job {each['job_id']} " in reason["says"] for each in failed
    )
    checked = CliRunner().invoke(main, ("fsck", "--quick", "--data", damaged.data))
    assert checked.exit_code == 1 and f"no object {key}" in checked.output
    # and describe has one line about it
    described = run_ok("topics", "describe", COMPACTED, "--data", damaged.data)
    assert "Partition 0 has offsets 0 to 1 in L0 file" in described and "whose object is lost" in described
    assert "L0 files go to L1 when" not in described


def test_a_lost_object_of_a_plain_topic_is_told_until_its_records_are_deleted(damaged: Damaged) -> None:
    assert damaged.keys[PLAIN] in damaged.reason(PLAIN, "object lost")["says"]
    words = ("topics", "describe", PLAIN, "--data", damaged.data)
    assert "Partition 0 has offsets 0 to 1 in L0 file" in run_ok(*words)
    [told] = run_json(*words)["trouble"]
    assert told["partition"] == 0
    # when the lost records are given up, as the remedy says
    asyncio.run(with_metadata(damaged.stack, lambda metadata: delete_records(metadata, PLAIN, 2)))
    # then no command reports damage
    assert [each["code"] for each in damaged.reasons(PLAIN)] == ["plain"]
    assert run_json(*words)["trouble"] == [] and "whose object is lost" not in run_ok(*words)


async def with_metadata(stack: Stack, act: Callable[[MetadataStore], Any]) -> None:
    metadata = open_metadata(json.loads((stack.data / "run.json").read_text())["metadata_url"])
    await metadata.open()
    try:
        await act(metadata)
    finally:
        await metadata.close()


async def delete_records(metadata: MetadataStore, topic: str, offset: int) -> None:
    [partition_id] = next(each.partition_ids for each in await metadata.agents.list_topics() if each.name == topic)
    await metadata.agents.delete_records(partition_id, offset)


def test_unreadable_batches_are_told_with_the_job_that_met_them(damaged: Damaged) -> None:
    # given a plain topic with an unreadable batch, which becomes a compacted topic
    batches = [values("a", "b"), same_delta_twice(), values("a", "c")]
    asyncio.run(produce(damaged.stack.bootstrap, ODD, "delete", batches))
    run_ok("topics", "alter", ODD, "--config", "cleanup.policy=compact", "--yes", "--data", damaged.data)
    # when it is compacted
    done = run_json("compact", ODD, "--now", "--timeout", "100", "--data", damaged.data)
    # then explain says where the batch is, since when, and what to do
    reason = damaged.reason(ODD, "unreadable batches")
    assert "partition 0 has 1 batch whose records cannot be read, the first at offset 2: " in reason["says"]
    assert any(f"Known from job {each} (forced)" in reason["says"] for each in done["jobs"])
    # `siltstone file inspect` can read the named file, and the job says the same
    words = reason["remedy"].split("`")[1].split()[1:]
    assert "2" in run_ok(*words)
    job_id = reason["says"].split("Known from job ")[1].split()[0]
    shown = run_ok("jobs", "show", job_id, "--data", damaged.data)
    assert f"{ODD}-0: 1, the first at offset 2: " in shown


def test_what_the_planner_leaves_is_told_by_the_settings_that_are_given(damaged: Damaged) -> None:
    # given a compacted partition whose newest records are in L1
    # A recent time: the compactor would take the partition if its oldest record had waited an hour.
    now_ms = int(time.time() * 1000)
    large = build_batch([NewRecord(now_ms, b"a", bytes(100_000))])
    asyncio.run(produce(damaged.stack.bootstrap, "table", "compact", [large]))
    until(lambda: "in L0" not in {each["code"] for each in damaged.reasons("table")} or None)
    # when it is explained with settings that force a pass for any byte, but allow none over 64 KiB
    small = ["forced.dirty.bytes.min=0", "forced.interval.ms=1", "compaction.merge.bytes.max=65536"]
    words = ["--data", damaged.data, *(word for each in small for word in ("--set", each))]
    # then the partition is due but not planned, and the answer names the setting
    said = run_ok("topics", "explain", "table", *words)
    assert "Partition 0 is not planned: due (dirty ratio 1.00 over 0.50" in said
    assert "compaction.merge.bytes.max is 64.0 KiB" in said and "raise compaction.merge.bytes.max" in said
    assert "Partition 0 is not planned: due" in run_ok("topics", "describe", "table", *words)
