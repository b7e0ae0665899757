"""`siltstone transactions` against a running `siltstone dev` of two agents, and real transactional producers."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from metadata.postgres.driver import open_connection
from runtime.clock import SystemClock
from siltstone.demo.stack import Stack, running_stack
from siltstone.kafka.transactions import look
from tests.fixtures.commands import runner
from tests.integration.siltstone.test_groups_cli import until_agents_agree

TIMEOUT_S = 60
OPTIONS = ["--agents", "2", "--compactors", "0", "--set", "produce.linger.ms=5"]
NOBODY = 4_711_000
"""The id of a producer that no transactional id has."""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    data = tmp_path_factory.mktemp("transactions") / "data"
    data.mkdir()
    with running_stack(data, SystemClock(), options=OPTIONS) as stack:
        asyncio.run(until_agents_agree(stack.bootstrap.split(",")))
        yield stack


@pytest.fixture
def run(stack: Stack) -> Any:
    return runner({"SILTSTONE_DATA": str(stack.data)})


@pytest.fixture
def topic(run: Any) -> str:
    name = f"topic-{uuid.uuid4().hex[:8]}"
    run("topics", "create", name, "--partitions", "2")
    return name


@pytest.fixture
def name() -> str:
    return f"id-{uuid.uuid4().hex[:8]}"


def begun(stack: Stack, name: str) -> Producer:
    producer = Producer({"bootstrap.servers": stack.bootstrap, "transactional.id": name, "linger.ms": 0})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    return producer


@contextmanager
def ongoing(stack: Stack, name: str, topic: str, *partitions: int) -> Generator[Producer]:
    """A producer whose transaction has two records on each of the partitions."""
    producer = begun(stack, name)
    for partition in partitions * 2:
        producer.produce(topic, b"v", partition=partition)
    assert producer.flush(TIMEOUT_S) == 0
    yield producer


def rows(run: Any, *words: str) -> dict[str, Any]:
    found = json.loads(run("transactions", "list", "--json", *words).stdout)
    return {each["transactional_id"]: each for each in found}


def described(run: Any, name: str) -> Any:
    (found,) = json.loads(run("transactions", "describe", name, "--json").stdout)
    return found


def committed_values(stack: Stack, topic: str) -> int:
    """How many records a reader of committed records gets from partition 0, up to its last stable offset."""
    consumer = Consumer(
        {
            "bootstrap.servers": stack.bootstrap,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    count, deadline = 0, time.monotonic() + TIMEOUT_S
    try:
        while time.monotonic() < deadline:
            message = consumer.poll(1)
            if message is not None and message.error() is not None:  # the end of the partition
                return count
            count += message is not None
    finally:
        consumer.close()
    raise AssertionError("the reader reached no end")


def test_ids_are_listed_by_state_by_age_and_by_pattern(run: Any, stack: Stack, topic: str, name: str) -> None:
    begun(stack, f"{name}-idle")
    with ongoing(stack, f"{name}-open", topic, 0) as producer:
        both = rows(run, "--pattern", f"{name}-.*")
        assert set(both) == {f"{name}-idle", f"{name}-open"}
        one = both[f"{name}-open"]
        assert one["state"] == "Ongoing" and one["coordinator"] in stack.bootstrap.split(",")
        assert 0 <= one["age_ms"] < TIMEOUT_S * 1000 and one["timeout_ms"] == 60_000
        assert both[f"{name}-idle"]["state"] == "Empty" and both[f"{name}-idle"]["age_ms"] is None
        assert set(rows(run, "--pattern", f"{name}-.*", "--state", "ongoing")) == {f"{name}-open"}
        assert set(rows(run, "--pattern", f"{name}-.*", "--longer-than", "0ms")) == {f"{name}-open"}
        assert rows(run, "--pattern", f"{name}-.*", "--longer-than", "1h") == {}
        assert rows(run, "--pattern", name) == {}, "a pattern matches whole ids"
        shown = run("transactions", "list", "--state", "Ongoing").stdout
        assert re.search(rf"^{name}-open +\d+ +0 +Ongoing +127\.0\.0\.1:\d+ +\d+s$", shown, re.MULTILINE), shown
        # what is ongoing comes first, the oldest at the top; then the others by id
        with ongoing(stack, f"{name}-a", topic, 1) as younger:
            begun(stack, f"{name}-b")
            order = [f"{name}-open", f"{name}-a", f"{name}-b", f"{name}-idle"]
            assert list(rows(run, "--pattern", f"{name}-.*")) == order
            assert list(rows(run, "--topic", topic)) == order[:2]
            assert rows(run, "--topic", topic, "--pattern", ".*-b") == {}
            younger.abort_transaction(TIMEOUT_S)
        producer.commit_transaction(TIMEOUT_S)
    assert rows(run, "--topic", topic) == {}
    assert f"remedy: did you mean '{topic}'?" in run("transactions", "list", "--topic", f"{topic}x", code=1).stderr
    assert rows(run, "--pattern", f"{name}-open")[f"{name}-open"]["state"] == "CompleteCommit"
    assert run("transactions", "list", "--pattern", "nobody").stdout == "no transactions\n"


def test_the_coordinator_that_is_shown_is_the_one_that_agents_name(run: Any, stack: Stack) -> None:
    names = [f"id-{uuid.uuid4().hex[:8]}" for _ in range(24)]  # so many that no agent has all of them by chance
    for each in names:
        begun(stack, each)
    found = rows(run)
    assert {found[each]["coordinator"] for each in names} == set(stack.bootstrap.split(","))
    for each in names:
        assert asyncio.run(look(stack.bootstrap, each, SystemClock())).coordinator == found[each]["coordinator"]


def test_a_transaction_is_described_with_what_it_holds_back(run: Any, stack: Stack, topic: str, name: str) -> None:
    with ongoing(stack, f"{name}-first", topic, 0) as first, ongoing(stack, name, topic, 0, 1) as second:
        second.produce(topic, b"v", partition=1)
        second.flush(TIMEOUT_S)
        group = Consumer({"bootstrap.servers": stack.bootstrap, "group.id": f"group-{name}"})
        second.send_offsets_to_transaction([TopicPartition(topic, 0, 1)], group.consumer_group_metadata(), TIMEOUT_S)
        found = described(run, name)
        assert (found["state"], found["groups"], found["timeout_ms"]) == ("Ongoing", [f"group-{name}"], 60_000)
        assert found["coordinator"] in stack.bootstrap.split(",")
        fields = ("partition", "first_offset", "last_stable_offset", "high_watermark", "held_back", "holds")
        assert [tuple(each[field] for field in fields) for each in found["partitions"]] == [
            (0, 2, 0, 4, 4, False),
            (1, 0, 0, 3, 3, True),
        ]
        shown = run("transactions", "describe", name, f"{name}-first").stdout
        assert re.search(rf"{topic}-0 +2 +0 +4 +4 +{name}-first\n *{topic}-1 +0 +0 +3 +3 +this one", shown), shown
        assert [each["held_by"] for each in found["partitions"]] == [f"{name}-first", name]
        assert f"group-{name}" in shown and re.search(r"time-out +1m00s, over in \d+s", shown), shown
        first.abort_transaction(TIMEOUT_S)
        second.commit_transaction(TIMEOUT_S)
        group.close()
    ended = described(run, name)
    assert (ended["state"], ended["partitions"], ended["groups"]) == ("CompleteCommit", [], [])


def test_an_unknown_id_is_told_with_the_one_that_was_meant(run: Any, stack: Stack, name: str) -> None:
    begun(stack, name)
    said = run("transactions", "describe", f"{name}x", code=1).stderr
    assert f"there is no transactional id '{name}x'" in said and f"remedy: did you mean {name!r}?" in said
    for words, options in (
        ((), ""),
        (("--data", str(stack.data)), f" --data {stack.data}"),
        (("--bootstrap", stack.bootstrap), " --metadata URL"),
    ):
        unknown = run("transactions", "abort", f"{name}x", "--yes", *words, code=1).stderr
        assert "TRANSACTIONAL_ID_NOT_FOUND" in unknown
        assert f"`siltstone transactions list{options}` shows the ids" in unknown.replace("\n", " ")
        idle = run("transactions", "abort", name, "--yes", *words, code=1).stderr.replace("\n", " ")
        assert f"`siltstone transactions list --state Ongoing{options}` shows those" in idle


def test_an_aborted_transaction_lets_readers_go_on_and_its_producer_is_fenced(
    run: Any, stack: Stack, topic: str, name: str
) -> None:
    with ongoing(stack, name, topic, 0, 1) as producer:
        run("transactions", "abort", name, code=2)  # stdin is no terminal
        assert described(run, name)["state"] == "Ongoing"
        done = run("transactions", "abort", name, "--yes")
        assert f"on 2 partitions: {topic}-0, {topic}-1" in done.stderr
        assert re.fullmatch(
            rf"aborted the transaction of '{name}' on 2 partitions; producer \d+, epoch 0, is fenced\n", done.stdout
        )
        found = described(run, name)
        assert (found["state"], found["producer_epoch"], found["partitions"]) == ("CompleteAbort", 1, [])
        with pytest.raises(KafkaException, match=r"(?i)fenced|epoch"):
            producer.commit_transaction(TIMEOUT_S)
    with ongoing(stack, name, topic, 0) as new:
        new.commit_transaction(TIMEOUT_S)
    assert committed_values(stack, topic) == 2
    again = run("transactions", "abort", name, "--yes", code=1).stderr
    assert "has no ongoing transaction, it is CompleteCommit; nothing was done" in again
    assert "remedy: `siltstone transactions list --state Ongoing`" in again


def test_no_is_an_answer_that_says_that_nothing_was_done(run: Any, stack: Stack, topic: str, name: str) -> None:
    command = [sys.executable, "-m", "siltstone", "transactions", "abort", name, "--data", str(stack.data)]
    with ongoing(stack, name, topic, 0) as producer:
        ours, theirs = pty.openpty()
        with subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            os.close(theirs)
            os.write(ours, b"n\n")
            stdout, stderr = process.communicate(timeout=TIMEOUT_S)
        os.close(ours)
        assert (process.returncode, b"nothing was done" in stderr) == (1, True), stderr
        assert b"abort it and fence producer" in stdout + stderr and b"Aborted" not in stdout + stderr
        assert described(run, name)["state"] == "Ongoing"
        producer.commit_transaction(TIMEOUT_S)


def test_a_transaction_of_offsets_alone_holds_its_group_until_it_is_aborted(
    run: Any, stack: Stack, topic: str, name: str
) -> None:
    producer = begun(stack, name)
    group = Consumer({"bootstrap.servers": stack.bootstrap, "group.id": f"group-{name}"})
    producer.send_offsets_to_transaction([TopicPartition(topic, 0, 1)], group.consumer_group_metadata(), TIMEOUT_S)
    found = run("transactions", "find-hanging", "--longer-than", "0s", code=1)
    assert re.search(rf"^{name} .* 0 +1 +1 group$", found.stdout, re.MULTILINE), found.stdout
    hanging = json.loads(run("transactions", "find-hanging", "--longer-than", "0s", "--json", code=1).stdout)
    assert [(each["transactional_id"], each["groups"]) for each in hanging["hanging"]] == [(name, [f"group-{name}"])]
    done = run("transactions", "abort", name, "--yes")
    assert "is on no partition" in done.stderr
    assert re.fullmatch(rf"aborted the transaction of '{name}'; producer \d+, epoch 0, is fenced\n", done.stdout)
    ended = described(run, name)
    assert (ended["state"], ended["groups"], ended["age_ms"]) == ("Empty", [], None)
    (left,) = group.committed([TopicPartition(topic, 0)], timeout=TIMEOUT_S)
    assert left.error is None and left.offset < 0, left  # refused with UNSTABLE_OFFSET_COMMIT while it was ongoing
    with pytest.raises(KafkaException, match=r"(?i)fenced|epoch"):
        producer.commit_transaction(TIMEOUT_S)
    group.close()


def test_what_hangs_is_found_and_so_is_what_no_transaction_holds(run: Any, stack: Stack, topic: str, name: str) -> None:
    none = run("transactions", "find-hanging").stdout.replace("\n", " ")
    assert "no transaction has been ongoing for longer than 20m00s" in none and "none is ongoing at all" in none
    with ongoing(stack, name, topic, 0) as producer:
        found = run("transactions", "find-hanging", "--longer-than", "0ms", code=1)
        assert re.search(rf"^{name} .* 2$", found.stdout, re.MULTILINE), found.stdout
        assert f"`siltstone transactions abort ID --data {stack.data}`" in found.stdout.replace("\n", " ")
        assert json.loads(run("transactions", "find-hanging", "--longer-than", "1h", "--json").stdout)["ongoing"] == 1
        young = run("transactions", "find-hanging", "--data", str(stack.data)).stdout.replace("\n", " ")
        assert re.search(rf"1 is ongoing, the oldest \('{name}'\) for \d+s: ", young), young
        assert f"`siltstone transactions find-hanging --longer-than 0s --data {stack.data}` shows it" in young
        producer.commit_transaction(TIMEOUT_S)
    # given a row that no transaction ends
    url = json.loads((stack.data / "run.json").read_text())["metadata_url"]
    place = f"topic_id = (SELECT topic_id FROM topics WHERE name = '{topic}') AND partition = 1"
    entered = f"SELECT partition_id, {NOBODY}, 3, 1, 0 FROM partitions WHERE {place}"
    asyncio.run(execute(url, f"INSERT INTO transaction_partitions {entered}"))
    try:
        strays = run("transactions", "find-hanging", code=1)
        assert f"producer {NOBODY}, epoch 3: no transaction of it is ongoing" in strays.stdout
        assert f"{topic}-1" in strays.stdout and "1 partition without a transaction: a fault" in strays.stdout
        [stray] = json.loads(run("transactions", "find-hanging", "--json", code=1).stdout)["without_transaction"]
        assert (stray["producer_id"], stray["producer_epoch"]) == (NOBODY, 3)
        assert [(each["topic"], each["partition"]) for each in stray["partitions"]] == [(topic, 1)]
    finally:
        asyncio.run(execute(url, f"DELETE FROM transaction_partitions WHERE producer_id = {NOBODY}"))
    assert run("transactions", "find-hanging", "--json").exit_code == 0


def test_an_id_does_not_steer_the_terminal(run: Any, stack: Stack, topic: str) -> None:
    hostile = f"\x1b[1m\r\u202e{uuid.uuid4().hex[:8]}\nFORGED"
    with ongoing(stack, hostile, topic, 0):
        for words in (
            ("list",),
            ("list", "--json"),
            ("describe", hostile),
            ("describe", hostile, "--json"),
            ("abort", hostile, "--yes"),
        ):
            said = run("transactions", *words).output
            assert "FORGED" in said
            assert not [each for each in said if each != "\n" and not each.isprintable()], (words, said)
            assert not [line for line in said.split("\n") if line.strip().startswith("FORGED")], (words, said)


async def execute(url: str, statement: str) -> None:
    connection = await open_connection(url, connect_timeout_s=10, command_timeout_s=60, settings={})
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["list", "--longer-than", "soon"], "'soon' is not a duration"),
        (["find-hanging", "--longer-than", "20"], "'20' is not a duration"),
        (["list", "--pattern", "(a"], "'(a' is not a pattern"),
        (["list", "--state", "Prepared"], "Prepared"),
        (["describe"], "Missing argument 'ID...'"),
    ],
)
def test_wrong_words_are_told(run: Any, words: list[str], said: str) -> None:
    assert said in run("transactions", *words, code=2).stderr
