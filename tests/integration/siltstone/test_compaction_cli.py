"""The commands about compaction against a running `siltstone dev`, as a user types them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pty
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from click.testing import CliRunner, Result

from metadata.urls import open_metadata
from runtime.clock import SystemClock
from siltstone.cli import main
from siltstone.cli.compaction.watch import read_records
from siltstone.demo.stack import Stack, running_stack
from siltstone.embedded.attach import attach
from siltstone.kafka.client import connected
from siltstone.terminal import output
from tests.fixtures.waiting import wait_until
from wire.records import NewRecord, build_batch

OPTIONS = ("--set", "produce.linger.ms=5", "--set", "gc.grace.ms=4000", "--set", "job.limit.base.ms=6000")
"""Small files. Agents look for merged files after a quarter of the grace. Tombstones wait for half the grace plus the
time limit of a merge beyond delete.retention.ms."""
BALANCES: Sequence[tuple[str, str | None]] = (
    ("user:101", "balance=500"),
    ("user:102", "balance=1200"),
    ("user:101", "balance=480"),
    ("user:103", "balance=300"),
    ("user:102", "balance=1180"),
    ("user:101", "balance=460"),
    ("user:104", "balance=900"),
    ("user:103", None),
    ("user:101", "balance=440"),
    ("user:105", "balance=750"),
)


def run(*words: str) -> Result:
    return CliRunner().invoke(main, words)


def run_ok(*words: str) -> str:
    result = run(*words)
    assert result.exit_code == 0, result.output
    return result.stdout


def run_json(*words: str) -> Any:
    return json.loads(run_ok(*words, "--json"))


def write(
    bootstrap: str,
    topic: str,
    pairs: Sequence[tuple[str, str | None]],
    *,
    policy: str = "compact",
    configs: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Write to a new topic with one partition, each pair in its own batch."""

    async def produce() -> None:
        async with connected(bootstrap) as client:
            await client.create_topic(topic, partitions=1, configs={"cleanup.policy": policy, **configs})
            for number, (key, value) in enumerate(pairs):
                record = NewRecord(1_700_000_000_000 + number, key.encode(), None if value is None else value.encode())
                await client.produce(topic, 0, build_batch([record]))

    asyncio.run(produce())


def read(bootstrap: str, topic: str) -> list[tuple[int, str, str | None]]:
    async def fetch() -> list[tuple[int, str, str | None]]:
        async with connected(bootstrap) as client:
            end = (await client.list_offsets(topic, [0]))[0]
            return [
                (offset, (key or b"").decode(), None if value is None else value.decode())
                for offset, key, value in await read_records(client, topic, 0, 0, end)
            ]

    return asyncio.run(fetch())


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One `siltstone dev` with its compactor, for all tests of this module."""
    data = tmp_path_factory.mktemp("compaction") / "data"
    data.mkdir()
    with running_stack(data, SystemClock(), options=OPTIONS) as stack:
        # otherwise `compact --now` would be faster than dev's compactor and run one without these options
        until_a_compactor_lives(stack)
        yield stack


@pytest.fixture(scope="module")
def balances(stack: Stack) -> str:
    """A topic of ten records that compaction reduces to five, compacted."""
    write(stack.bootstrap, "balances", BALANCES)
    done = run_json("compact", "balances", "--now", "--timeout", "100", "--data", str(stack.data))
    assert (done["records_before"], done["records_after"]) == (10, 5)
    assert done["through"] == {"0": 10} and done["tombstones_kept"] == 1 and len(done["jobs"]) >= 2
    assert done["bytes_after"] < done["bytes_before"]
    return "balances"


def test_ten_records_come_to_five(stack: Stack, balances: str) -> None:
    assert read(stack.bootstrap, balances) == [
        (4, "user:102", "balance=1180"),
        (6, "user:104", "balance=900"),
        (7, "user:103", None),
        (8, "user:101", "balance=440"),
        (9, "user:105", "balance=750"),
    ]


def test_compacting_again_finds_the_same(stack: Stack, balances: str) -> None:
    shown = run_ok("compact", balances, "--now", "--timeout", "100", "--data", str(stack.data))
    assert "5 -> 5 (0 gone)" in shown and "took" in shown
    assert len(read(stack.bootstrap, balances)) == 5


def test_a_tombstone_that_had_its_time_goes_when_asked_though_nothing_was_written(stack: Stack) -> None:
    # given a topic whose tombstones need not wait for readers
    write(stack.bootstrap, "forgotten", BALANCES, configs={"delete.retention.ms": "0"})
    words = ("compact", "forgotten", "--now", "--timeout", "60", "--data", str(stack.data))
    assert run_json(*words)["tombstones_kept"] == 1
    # when it is compacted again and again, then the tombstone is removed after its time
    deadline = time.monotonic() + 60
    while not run_json(*words)["tombstones_dropped"]:
        assert time.monotonic() < deadline
        time.sleep(2)  # each look is a pass
    (state,) = run_json("topics", "describe", "forgotten", "--data", str(stack.data))["compaction"]
    assert state["head_offsets"] == 0
    while "user:103" in [key for _, key, _ in read(stack.bootstrap, "forgotten")]:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    # and then nothing is due
    assert run_json(*words)["jobs"] == []


def test_describe_shows_how_far_compaction_is(stack: Stack, balances: str) -> None:
    words = ("topics", "describe", balances, "--data", str(stack.data))
    # --data alone finds the agents of the directory
    (state,) = run_json(*words)["compaction"]
    assert (state["cleaned_through_offset"], state["high_watermark"], state["head_offsets"]) == (10, 10, 0)
    assert state["dirty_ratio"] == 0 and state["last_cleaned_ms"] is not None and state["due"] == ""
    table = run_ok(*words)
    assert "dirty ratio" in table and "last pass" in table and " ago" in table
    # and without --data and --metadata it says how to see the progress
    plainly = run_ok("topics", "describe", balances, "--bootstrap", stack.bootstrap)
    assert "to see the progress of compaction, add --data DIR or --metadata URL" in plainly
    assert "dirty ratio" not in plainly


def test_describe_says_nothing_of_compaction_for_a_plain_topic(stack: Stack) -> None:
    write(stack.bootstrap, "plain", BALANCES[:2], policy="delete")
    words = ("topics", "describe", "plain", "--data", str(stack.data))
    assert "dirty ratio" not in run_ok(*words) and "compaction" not in run_json(*words)


def test_explain_tells_what_waits_and_what_is_done(stack: Stack, balances: str) -> None:
    reasons = run_json("topics", "explain", balances, "--data", str(stack.data))["reasons"]
    # The janitor deletes the old values after the grace of 4 s, which may have passed.
    codes = {reason["code"] for reason in reasons}
    assert codes - {"remains", "gone"} == {"tombstones"} and len(codes) == 2
    write(stack.bootstrap, "fresh", BALANCES[:3])
    reasons = run_json("topics", "explain", "fresh", "--data", str(stack.data))["reasons"]
    told = {reason["code"]: reason for reason in reasons}
    assert "in L0" in told and "siltstone compact fresh --now" in told["in L0"]["remedy"]
    shown = run_ok("topics", "explain", "fresh", "--data", str(stack.data))
    assert shown.startswith("- Partition 0 ") and "\n  remedy: " in shown


def test_without_now_it_is_said_what_is_due_and_how_to_force_it(stack: Stack, balances: str) -> None:
    shown = run_ok("compact", balances, "--data", str(stack.data))
    assert "nothing is due" in shown and f"siltstone compact {balances} --now" in shown
    assert run_json("compact", balances, "--data", str(stack.data))["partitions"][0]["partition"] == 0


@pytest.mark.parametrize("words", [("--now",), ()])
def test_a_plain_topic_is_refused_with_the_remedy(stack: Stack, words: Sequence[str]) -> None:
    write(stack.bootstrap, f"log{len(words)}", BALANCES[:1], policy="delete")
    refused = run("compact", f"log{len(words)}", *words, "--data", str(stack.data))
    assert refused.exit_code == 1
    assert f"log{len(words)} is not a compacted topic: its cleanup.policy is delete" in refused.stderr
    assert "remedy: none, if that is intended" in refused.stderr
    assert "`siltstone topics alter" in refused.stderr
    # explain gives the same answer
    assert "is not compacted" in run_ok("topics", "explain", f"log{len(words)}", "--data", str(stack.data))


def test_a_topic_that_is_not_there_is_told_with_its_neighbour(stack: Stack, balances: str) -> None:
    for words in (("compact", "balance", "--now"), ("topics", "explain", "balance")):
        missing = run(*words, "--data", str(stack.data))
        assert missing.exit_code == 1
        assert "there is no topic 'balance'" in missing.stderr and "did you mean 'balances'?" in missing.stderr


def test_a_wait_that_is_too_short_leaves_the_request(stack: Stack) -> None:
    write(stack.bootstrap, "slow", BALANCES)
    ended = run("compact", "slow", "--now", "--timeout", "0", "--data", str(stack.data))
    assert ended.exit_code == 1
    assert "error: slow is not compacted after 0 s" in ended.stderr and "the request stays" in ended.stderr
    deadline = time.monotonic() + 100
    while len(read(stack.bootstrap, "slow")) > 5:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_the_levels_are_a_picture_and_files_say_what_lives_in_them(stack: Stack, balances: str) -> None:
    levels = {(each["level"], each["class"]): each for each in run_json("levels", "--data", str(stack.data))["levels"]}
    assert levels[2, "compacted"]["runs"][0]["live_bytes"] > 0
    drawn = run_ok("levels", "--data", str(stack.data))
    assert "L2 compacted" in drawn and "% live" in drawn and "█" in drawn and "lo..hi" in drawn
    files = run_json("files", "list", "--level", "2", "--state", "live", "--data", str(stack.data))
    assert sum(file["records"] for file in files) >= 5 and all(file["partitions"] >= 1 for file in files)
    assert all(0 < file["live_bytes"] <= file["size_bytes"] and file["class"] == "compacted" for file in files)
    table = run_ok("files", "list", "--level", "2", "--state", "live", "--data", str(stack.data))
    assert "compacted" in table and files[0]["key"] in table


def test_watching_shows_the_log_beside_its_latest_values(stack: Stack) -> None:
    # given alice, bob and carol, written again and again
    write(stack.bootstrap, "users", [("alice", "1"), ("bob", "1"), ("alice", "2"), ("carol", "1"), ("bob", None)])
    words = ("compaction", "watch", "users", "--once", "--data", str(stack.data))
    # when watch runs before and after a pass, then superseded records are first struck out, then gone
    before = [line.split()[1:] for line in run_ok(*words).splitlines()]
    assert ["0", "x", "alice", "=", "1"] in [line[:5] for line in before]
    run_ok("compact", "users", "--now", "--timeout", "100", "--data", str(stack.data))
    after = run_ok(*words)
    lines = [line.split() for line in after.splitlines()]
    assert "users-0  log start 0  cleaned through 5  high watermark 5" in after
    assert ["L2", "2", "alice", "=", "2", "carol", "1", "3"] in lines
    assert ["L2", "4", "∅", "bob", "=", "∅"] in lines
    assert "… 2 removed" in after and "clean above, head below" in after
    missing = run(*words, "--partition", "7")
    assert missing.exit_code == 1 and "users has no partition 7" in missing.stderr


def test_a_plain_topic_is_not_watched_and_keeps_the_case_of_its_name(stack: Stack) -> None:
    write(stack.bootstrap, "hello", BALANCES[:1], policy="delete")
    refused = run("compaction", "watch", "hello", "--data", str(stack.data))
    assert refused.exit_code == 1 and "hello is not a compacted topic" in refused.stderr
    assert run_ok("topics", "explain", "hello", "--data", str(stack.data)).startswith("- hello is not compacted")
    for words in (("topics", "explain", "Hello"), ("topics", "describe", "Hello"), ("compaction", "watch", "Hello")):
        assert "did you mean 'hello'?" in run(*words, "--data", str(stack.data)).stderr


def write_at(bootstrap: str, topic: str, timestamp_ms: int, count: int) -> None:
    async def produce() -> None:
        async with connected(bootstrap) as client:
            for number in range(count):
                await client.produce(topic, 0, build_batch([NewRecord(timestamp_ms, f"k{number % 3}".encode(), b"v")]))

    asyncio.run(produce())


def test_what_is_too_young_is_counted_and_not_waited_for(stack: Stack) -> None:
    # given a topic in which no record is old enough
    now_ms, lag = SystemClock().wall_ms(), {"min.compaction.lag.ms": "3600000"}
    write(stack.bootstrap, "young", (), configs=lag)
    write_at(stack.bootstrap, "young", now_ms, 16)
    words = ("compact", "young", "--now", "--timeout", "60", "--data", str(stack.data))
    # when it is compacted, then the command says that nothing can be cleaned yet, and what is there
    shown = run_ok(*words)
    assert "16 offsets held back by min.compaction.lag.ms" in shown and "16 -> 16 (0 gone)" in shown
    assert "every partition is cleaned" not in shown and "nothing else was due" in shown
    explained = run_ok("topics", "explain", "young", "--data", str(stack.data))
    assert "younger than min.compaction.lag.ms" in explained and "--now" not in explained
    assert "Partition 0 keeps its last 16 offsets" in run_ok("compact", "young", "--data", str(stack.data))


def test_old_records_that_a_merge_joins_with_young_ones_end_the_wait(stack: Stack) -> None:
    # given a topic whose first records are old enough, but not its last
    now_ms, lag = SystemClock().wall_ms(), {"min.compaction.lag.ms": "3600000"}
    write(stack.bootstrap, "mixed", (), configs=lag)
    write_at(stack.bootstrap, "mixed", now_ms - 7_200_000, 8)
    write_at(stack.bootstrap, "mixed", now_ms, 4)
    # when it is compacted, then the command ends, even if the old records already share an extent with the young ones
    done = run_json("compact", "mixed", "--now", "--timeout", "60", "--data", str(stack.data))
    assert done["through"] == {"0": 8} and done["records_before"] == 12
    assert done["held_by_lag"] in (4, 12) and done["held_by_transactions"] == 0


@pytest.mark.parametrize(
    ("words", "number"),
    [(("levels", "--watch"), signal.SIGINT), (("compaction", "watch", "balances"), signal.SIGTERM)],
)
def test_a_watch_is_ended_by_a_signal_in_silence(
    stack: Stack, balances: str, words: Sequence[str], number: signal.Signals
) -> None:
    # given a watch that draws, on a terminal
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "siltstone", *words, "--data", str(stack.data)]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True) as process:
        os.close(theirs)
        seen = b""
        while b"L2" not in seen:
            seen += os.read(ours, 65_536)
        # when it is told to end
        process.send_signal(number)
        with contextlib.suppress(OSError):  # a terminal after its program has ended
            while more := os.read(ours, 65_536):
                seen += more
        # then the command ends without a message, and the cursor is visible again
        assert process.wait(timeout=30) == 0
    os.close(ours)
    assert b"Aborted" not in seen and b"Traceback" not in seen
    assert seen.rindex(b"\x1b[?25h") > seen.rindex(b"\x1b[?25l")


def test_topics_are_managed_by_the_directory_of_their_stack(stack: Stack) -> None:
    place = ("--data", str(stack.data))
    assert run_ok("topics", "create", "managed", *place) == "created managed with 1 partition\n"
    assert run_ok("topics", "alter", "managed", "--partitions", "2", *place) == "altered managed\n"
    assert "managed" in run_ok("topics", "list", *place)
    mistyped = run("topics", "alter", "mangaed", "--partitions", "3", *place)
    assert mistyped.exit_code == 1 and "remedy: did you mean 'managed'?" in mistyped.stderr
    assert run_ok("topics", "delete", "managed", "--yes", *place) == "deleted managed\n"


def test_a_second_compactor_runs_beside_dev_by_its_directory(stack: Stack, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "siltstone", "compactor", "--data", str(stack.data)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("compactor: ")
        assert asyncio.run(live_compactors(metadata_url_of(stack))) == 2
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0
    nowhere = run("compactor", "--data", str(tmp_path))
    assert nowhere.exit_code == 1 and f"no `siltstone dev` runs on {tmp_path}" in nowhere.stderr
    assert run("compactor", "--data", str(tmp_path), "--metadata", "postgresql://x@y/z").exit_code == 2


def test_tables_fit_80_columns_with_keys_whole(stack: Stack, balances: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place = ("--data", str(stack.data))
    key = run_json("files", "list", "--state", "live", "--level", "L2", *place)[0]["key"]
    monkeypatch.setattr(output, "PIPED_WIDTH", 80)
    files = run_ok("files", "list", *place)
    assert key in [line.strip() for line in files.splitlines()]
    jobs = run_ok("jobs", "list", *place)
    assert "100 %" in jobs and "####" not in jobs
    # "live" is the share of the bytes written: no record of this file is dead; dead files are not counted
    rows = [line.split() for line in files.splitlines()]
    assert "100 %" in files
    assert all(words[-2:] == ["-", "-"] for words in rows if words[1:3] == ["L0", "dead"])
    described = run_ok("topics", "describe", balances, *place)
    for shown in (files, jobs, described, run_ok("levels", *place)):
        assert max(map(len, shown.splitlines())) <= 80, shown


def test_hints_run_as_they_are_printed(stack: Stack, balances: str) -> None:
    shown = run_ok("compact", balances, "--data", str(stack.data))
    for line in shown.splitlines():
        if "siltstone " in line:
            run_ok(*shlex.split(line[line.index("siltstone ") :])[1:])
    assert shown.count("siltstone ") == 2


def test_describe_prints_what_acts_and_the_rest_when_asked(stack: Stack, balances: str) -> None:
    words = ("topics", "describe", balances, "--data", str(stack.data))
    shown = run_ok(*words)
    assert "min.cleanable.dirty.ratio" in shown and "unclean.leader.election.enable" not in shown
    assert "unclean.leader.election.enable" in run_ok(*words, "--all")
    # the progress of compaction comes last
    assert shown.index("cleanup.policy") < shown.index("high watermark") < shown.index("dirty ratio")


def test_ctrl_c_stops_the_waiting_and_leaves_the_request(stack: Stack) -> None:
    write(stack.bootstrap, "interrupted", BALANCES)
    command = [sys.executable, "-m", "siltstone", "compact", "interrupted", "--now", "--data", str(stack.data)]
    # given a compactor that holds its lease but does nothing
    os.kill(compactor_pid(stack), signal.SIGSTOP)
    try:
        # when a command that waits for it is interrupted
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            await_request(stack, "interrupted")
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=30)
        # then the command says so, and the request is stored
        assert process.returncode == 130
        assert "stopped waiting. The request stays" in errors and "Traceback" not in errors
        assert requested(stack, "interrupted") == 10
    finally:
        os.kill(compactor_pid(stack), signal.SIGCONT)
        until_a_compactor_lives(stack)  # tests come in any order, and its lease may have ended


def metadata_url_of(stack: Stack) -> str:
    return json.loads((stack.data / "run.json").read_text())["metadata_url"]


def until_a_compactor_lives(stack: Stack) -> None:
    wait_until(lambda: asyncio.run(live_compactors(metadata_url_of(stack))))


def compactor_pid(stack: Stack) -> int:
    """The child of `siltstone dev` that runs `siltstone compactor`."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
            except OSError:
                continue
            if b"compactor" in words and int(parent) == stack.pid:
                return int(entry.name)
    raise AssertionError("the stack has no compactor")


def requested(stack: Stack, topic: str) -> int | None:
    (state,) = run_json("topics", "describe", topic, "--data", str(stack.data))["compaction"]
    return state["requested_through_offset"]


def await_request(stack: Stack, topic: str) -> None:
    deadline = time.monotonic() + 30
    while requested(stack, topic) is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_where_nobody_compacts_it_is_done_in_this_process(tmp_path: Path) -> None:
    # given the directory of a stack that was stopped before any merge
    data = tmp_path / "data"
    data.mkdir()
    with running_stack(data, SystemClock(), options=[*OPTIONS, "--compactors", "0"]) as stack:
        write(stack.bootstrap, "users", BALANCES)
        told = run_json("topics", "explain", "users", "--data", str(data))["reasons"]
        assert told[0]["code"] == "no compactor" and f"siltstone compactor --data {data}" in told[0]["remedy"]
    # then the metadata describes the topic, and commands that need an agent say so
    described = run("topics", "describe", "users", "--data", str(data), "--json")
    assert json.loads(described.stdout)["partitions"] == [
        {"partition": 0, "agent": None, "log_start_offset": 0, "high_watermark": 10, "last_stable_offset": 10}
    ]
    assert "no agent runs on" in described.stderr and len(json.loads(described.stdout)["compaction"]) == 1
    assert f"no agent runs on {data}" in run("compaction", "watch", "users", "--data", str(data)).stderr
    # when it is compacted, then the command says so and compacts
    done = run("compact", "users", "--now", "--timeout", "100", "--data", str(data), "--json")
    assert done.exit_code == 0, done.output
    # and it does not print the log of the compactor
    assert done.stderr == "no compactor is running: one runs in this process until the pass is done\n"
    assert json.loads(done.stdout)["records_after"] == 5
    # and the live files hold these records alone, and no lease of it is left
    assert sum(file["records"] for file in run_json("files", "list", "--state", "live", "--data", str(data))) == 5
    with attach(data) as attached:
        assert asyncio.run(live_compactors(attached.metadata_url)) == 0


async def live_compactors(metadata_url: str) -> int:
    metadata = open_metadata(metadata_url)
    await metadata.open()
    try:
        return len(await metadata.compactors.live_compactors())
    finally:
        await metadata.close()
