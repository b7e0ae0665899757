"""`siltstone groups` against a running `siltstone dev` of two agents, and real consumers in real groups."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from runtime.clock import SystemClock
from siltstone.demo.stack import Stack, running_stack
from siltstone.kafka.client import connected
from tests.fixtures.commands import runner

TIMEOUT_S = 60
BASE_MS = 1_700_000_000_000
OPTIONS = [
    "--agents",
    "2",
    "--compactors",
    "0",
    "--set",
    "produce.linger.ms=5",
    "--set",
    "group.initial.rebalance.delay.ms=50",
]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    data = tmp_path_factory.mktemp("groups") / "data"
    data.mkdir()
    with running_stack(data, SystemClock(), options=OPTIONS) as stack:
        asyncio.run(until_agents_agree(stack.bootstrap.split(",")))
        yield stack


async def until_agents_agree(addresses: Sequence[str]) -> None:
    """During its first moments an agent may not know the other one; then both believe that they own the group."""
    async with asyncio.timeout(TIMEOUT_S):
        for address in addresses:
            async with connected(address) as client:
                while len((await client.metadata([])).brokers) < len(addresses):
                    await asyncio.sleep(0.05)


@pytest.fixture
def run(stack: Stack) -> Any:
    return runner({"SILTSTONE_BOOTSTRAP": stack.bootstrap})


@pytest.fixture
def topic(run: Any) -> str:
    """Two partitions of ten records each."""
    name = f"topic-{uuid.uuid4().hex[:8]}"
    run("topics", "create", name, "--partitions", "2")
    lines = b"".join(b"%d %d v\n" % (number % 2, BASE_MS + number) for number in range(20))
    run("produce", name, "-f", r"%p %T %v\n", stdin=lines)
    return name


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:8]}"


def commit(stack: Stack, group: str, topic: str, *offsets: int) -> None:
    """Commit as a consumer without a group membership."""
    consumer = Consumer({"bootstrap.servers": stack.bootstrap, "group.id": group, "enable.auto.commit": False})
    places = [TopicPartition(topic, partition, offset) for partition, offset in enumerate(offsets)]
    consumer.assign(places)
    consumer.commit(offsets=places, asynchronous=False)
    consumer.close()


@contextmanager
def member(stack: Stack, group: str, topic: str) -> Iterator[None]:
    """A member that has an assignment and keeps polling."""
    consumer = Consumer(
        {
            "bootstrap.servers": stack.bootstrap,
            "group.id": group,
            "client.id": "reader",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    deadline = time.monotonic() + TIMEOUT_S
    while not consumer.assignment():
        assert time.monotonic() < deadline, "no assignment"
        consumer.poll(0.1)
    ended = threading.Event()

    def poll() -> None:
        while not ended.is_set():
            consumer.poll(0.1)

    polling = threading.Thread(target=poll)
    polling.start()
    try:
        yield
    finally:
        ended.set()
        polling.join()
        consumer.close()


def committed(run: Any, group: str) -> dict[tuple[str, int], int]:
    described = json.loads(run("groups", "describe", group, "--json").stdout)
    return {
        (each["topic"], each["partition"]): each["committed"]
        for each in described["partitions"]
        if each["committed"] is not None
    }


def test_a_group_is_listed_and_described_with_its_lag(run: Any, stack: Stack, topic: str, group: str) -> None:
    commit(stack, group, topic, 10, 4)
    listed = {each["group_id"]: each for each in json.loads(run("groups", "list", "--json").stdout)}
    assert listed[group]["state"] == "Empty" and listed[group]["coordinator"] in stack.bootstrap.split(",")
    assert group in run("groups", "list", "--state", "empty").stdout
    assert group not in run("groups", "list", "--state", "Stable").stdout
    described = json.loads(run("groups", "describe", group, "--json").stdout)
    assert described["state"] == "Empty" and described["total_lag"] == 6 and described["members"] == []
    assert [(each["committed"], each["log_end"], each["lag"]) for each in described["partitions"]] == [
        (10, 10, 0),
        (4, 10, 6),
    ]
    shown = run("groups", "describe", group).stdout
    assert "total lag    6" in shown and topic in shown


def test_groups_of_every_agent_are_listed(run: Any, stack: Stack, topic: str) -> None:
    names = [f"group-{uuid.uuid4().hex[:8]}" for _ in range(24)]  # so many that no agent has all of them by chance
    for name in names:
        commit(stack, name, topic, 1)
    listed = {each["group_id"]: each["coordinator"] for each in json.loads(run("groups", "list", "--json").stdout)}
    assert set(names) <= set(listed)
    assert {listed[name] for name in names} == set(stack.bootstrap.split(","))


def test_members_are_shown_with_what_they_read_and_keep_offsets_from_being_moved(
    run: Any, stack: Stack, topic: str, group: str
) -> None:
    commit(stack, group, topic, 3)
    with member(stack, group, topic):
        described = json.loads(run("groups", "describe", group, "--json").stdout)
        assert described["state"] == "Stable"
        [one] = described["members"]
        assert one["client_id"] == "reader" and one["assignment"] == {topic: [0, 1]}
        assert {each["member_id"] for each in described["partitions"]} == {one["member_id"]}
        assert [each["committed"] for each in described["partitions"]] == [3, None]
        refused = run("groups", "reset", group, "--topic", topic, "--to-latest", "--execute", code=1)
        assert "is Stable, with 1 member" in refused.stderr and "remedy: stop the members first" in refused.stderr
        assert "NON_EMPTY_GROUP" in run("groups", "delete", group, "--yes", code=1).stderr
        subscribed = run("groups", "delete-offsets", group, "--topic", topic, "--yes", code=1)
        assert "GROUP_SUBSCRIBED_TO_TOPIC" in subscribed.stderr
    assert committed(run, group) == {(topic, 0): 3}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--to-earliest"], [0, 0]),
        (["--to-latest"], [10, 10]),
        (["--to-offset", "7"], [7, 7]),
        (["--to-offset", "700"], [10, 10]),
        (["--to-datetime", str(BASE_MS + 10)], [5, 5]),
        (["--to-datetime", "2099-01-01"], [10, 10]),
        (["--shift-by", "-2"], [3, 2]),
        (["--shift-by", "-9"], [0, 0]),
    ],
)
def test_offsets_are_moved_only_when_it_is_said_to_execute(
    run: Any, stack: Stack, topic: str, group: str, words: list[str], expected: list[int]
) -> None:
    commit(stack, group, topic, 5, 4)
    shown = json.loads(run("groups", "reset", group, "--topic", topic, *words, "--json").stdout)
    assert [(each["before"], each["after"]) for each in shown["offsets"]] == list(zip([5, 4], expected, strict=True))
    assert committed(run, group) == {(topic, 0): 5, (topic, 1): 4}
    done = run("groups", "reset", group, "--topic", topic, *words, "--execute")
    assert f"reset 2 offsets of {group}" in done.stdout
    assert committed(run, group) == {(topic, 0): expected[0], (topic, 1): expected[1]}


def test_partitions_can_be_named_and_a_new_group_is_made(run: Any, topic: str, group: str) -> None:
    planned = run("groups", "reset", group, "--topic", f"{topic}:1", "--to-latest")
    assert "nothing was changed" in planned.stdout and f"group {group!r} does not exist" in planned.stderr
    assert "GROUP_ID_NOT_FOUND" in run("groups", "describe", group, code=1).stderr
    run("groups", "reset", group, "--topic", f"{topic}:1", "--to-latest", "--execute")
    assert committed(run, group) == {(topic, 1): 10}
    run("groups", "reset", group, "--all-topics", "--to-earliest", "--execute")
    assert committed(run, group) == {(topic, 1): 0}


def test_offsets_and_groups_are_deleted(run: Any, stack: Stack, topic: str, group: str) -> None:
    commit(stack, group, topic, 5, 4)
    assert "add --yes" in run("groups", "delete", group, code=2).stderr
    assert (
        "deleted 1 committed offset"
        in run(*("groups", "delete-offsets", group, "--topic", f"{topic}:0", "--yes")).stdout
    )
    assert committed(run, group) == {(topic, 1): 4}
    assert run("groups", "delete", group, "--yes").stdout == f"deleted {group}\n"
    assert "GROUP_ID_NOT_FOUND" in run("groups", "describe", group, code=1).stderr


def test_what_is_nearly_right_is_told(run: Any, stack: Stack, topic: str, group: str) -> None:
    commit(stack, group, topic, 1)
    for words in (("describe", f"{group}x"), ("delete", f"{group}x", "--yes")):
        assert f"did you mean {group!r}?" in run("groups", *words, code=1).stderr
    missing = run("groups", "reset", group, "--topic", f"{topic}x", "--to-latest", code=1)
    assert f"did you mean {topic!r}?" in missing.stderr
    assert (
        "has no committed offset to shift"
        in run(*("groups", "reset", group, "--topic", f"{topic}:1", "--shift-by", "1"), code=1).stderr
    )
    for words in (
        ("reset", group, "--to-latest"),
        ("reset", group, "--topic", topic),
        ("reset", group, "--topic", topic, "--to-latest", "--to-earliest"),
        ("reset", group, "--topic", topic, "--all-topics", "--to-latest"),
        ("reset", group, "--topic", f"{topic}:x", "--to-latest"),
        ("reset", group, "--topic", topic, "--to-datetime", "soon"),
        ("reset", group, "--topic", topic, "--to-latest", "--execute", "--dry-run"),
    ):
        assert "rror: " in run("groups", *words, code=2).stderr, words


def test_with_a_topic_its_committed_offsets_go(run: Any, stack: Stack, topic: str, group: str) -> None:
    commit(stack, group, topic, 5)
    run("topics", "delete", topic, "--yes")
    refused = run("groups", "reset", group, "--all-topics", "--to-latest", code=1)
    assert "has no committed offsets" in refused.stderr


def test_consume_as_a_member_goes_on_where_the_group_left_off(run: Any, topic: str, group: str) -> None:
    fields = ("--group", group, "--format", r"%p %o\n")
    first = run("consume", topic, *fields, "--num", "7")
    assert f"group {group}: this member reads {topic} 0,1" in first.stderr
    assert json.loads(run("groups", "describe", group, "--json").stdout)["total_lag"] == 13
    rest = run("consume", topic, *fields, "--until-end")
    shown = first.stdout.splitlines() + rest.stdout.splitlines()
    assert sorted(shown) == sorted(f"{partition} {offset}" for partition in range(2) for offset in range(10))
    described = json.loads(run("groups", "describe", group, "--json").stdout)
    assert (described["total_lag"], described["state"], described["members"]) == (0, "Empty", [])


def test_ctrl_c_commits_what_was_printed_and_leaves(run: Any, stack: Stack, topic: str, group: str) -> None:
    words = [sys.executable, "-m", "siltstone", "consume", topic, "-g", group, "-f", r"%o\n", "--data", str(stack.data)]
    consuming = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert consuming.stdout is not None
    for _ in range(20):
        assert consuming.stdout.readline()
    consuming.send_signal(signal.SIGINT)
    _, said = consuming.communicate(timeout=TIMEOUT_S)
    assert consuming.returncode == 0 and said.decode().count("\n") == 1, said
    described = json.loads(run("groups", "describe", group, "--json").stdout)
    assert (described["total_lag"], described["state"]) == (0, "Empty")


def test_ctrl_c_ends_it_although_nobody_reads_what_it_prints(run: Any, stack: Stack, topic: str, group: str) -> None:
    run("produce", topic, stdin=b"".join(b"%d %s\n" % (number, bytes(1_000).hex().encode()) for number in range(100)))
    words = [sys.executable, "-m", "siltstone", "consume", topic, "-g", group, "--data", str(stack.data)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as consuming:
        assert consuming.stdout is not None and consuming.stderr is not None
        deadline = time.monotonic() + TIMEOUT_S
        while unread_bytes(consuming.stdout) <= PIPE_BYTES - select.PIPE_BUF:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        consuming.send_signal(signal.SIGINT)
        assert consuming.wait(TIMEOUT_S) == 0
    assert json.loads(run("groups", "describe", group, "--json").stdout)["state"] == "Empty"


PIPE_BYTES = 65_536


def unread_bytes(pipe: IO[bytes]) -> int:
    (count,) = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))
    return count


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-p", "1"], "a group assigns the partitions itself"),
        (["-o", "5"], "`siltstone groups reset g --topic t` moves them"),
        (["-o", "@-1h:@now"], "--offset @-1h:@now cannot be combined with --group"),
    ],
)
def test_what_a_group_decides_cannot_be_said_beside_it(run: Any, words: list[str], said: str) -> None:
    assert said in run("consume", "t", "--group", "g", *words, code=2).stderr


def test_a_topic_that_is_not_there_is_told_before_anything_is_joined(run: Any, group: str) -> None:
    assert "UNKNOWN_TOPIC_OR_PARTITION" in run("consume", "nowhere", "--group", group, code=1).stderr
    assert group not in run("groups", "list").stdout


@pytest.mark.parametrize(("name", "said"), [("g" * 40_000, "at most 32767 bytes"), (b"g\xff", "is not UTF-8")])
def test_a_name_that_no_request_carries_is_refused(run: Any, topic: str, name: str | bytes, said: str) -> None:
    assert said in run("consume", topic, "--group", os.fsdecode(name), code=1).stderr
