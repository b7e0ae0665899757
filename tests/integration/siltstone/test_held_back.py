"""Commands that read committed records say where an open transaction holds some back, against a running stack."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from runtime.clock import SystemClock
from siltstone.demo.stack import Stack, running_stack
from siltstone.kafka.partitioner import partition_of_key
from tests.fixtures.commands import runner

TIMEOUT_S = 60
OPTIONS = ["--agents", "1", "--compactors", "0", "--set", "produce.linger.ms=5"]
FIND = "siltstone transactions find-hanging --longer-than 0s"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    data = tmp_path_factory.mktemp("held") / "data"
    data.mkdir()
    with running_stack(data, SystemClock(), options=OPTIONS) as stack:
        yield stack


@pytest.fixture
def run(stack: Stack) -> Any:
    return runner({"COLUMNS": "200"}, "--data", str(stack.data))


@pytest.fixture
def topic(run: Any) -> str:
    """Three partitions, with two plain records on the first."""
    name = f"topic-{uuid.uuid4().hex[:8]}"
    run("topics", "create", name, "--partitions", "3")
    run("produce", name, "-p", "0", "-k", "old", stdin=b"a\nb\n")
    return name


@pytest.fixture
def producer(run: Any, stack: Stack, topic: str) -> Producer:
    """Its transaction has three records on partition 0 and one on partition 1; a plain one follows on the latter."""
    options = {"bootstrap.servers": stack.bootstrap, "transactional.id": f"id-{topic}", "linger.ms": 0}
    producer = Producer(options)
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    for partition in (0, 0, 0, 1):
        producer.produce(topic, b"v", key=b"new", partition=partition)
    assert producer.flush(TIMEOUT_S) == 0
    run("produce", topic, "-p", "1", stdin=b"plain\n")
    return producer


def held(stack: Stack, topic: str, stands: str) -> str:
    ends = "for the end of an open transaction"
    return (
        f"{topic} partition 0: {stands} offset 2; 3 offsets from there on wait {ends}\n"
        f"{topic} partition 1: {stands} offset 0; 2 offsets from there on wait {ends}\n"
        f"remedy: `{FIND} --data {stack.data}` shows the transaction; --isolation-level read_uncommitted prints the"
        " records before it ends\n"
    )


def test_consume_says_at_its_end_where_a_transaction_stopped_it(
    run: Any, stack: Stack, topic: str, producer: Producer
) -> None:
    read = run("consume", topic, "--until-end")
    assert (read.stdout, read.stderr) == ("a\nb\n", held(stack, topic, "stopped at"))
    as_json = run("consume", topic, "--until-end", "--json", "-p", "1")
    assert as_json.stdout == "" and "partition 1: stopped at offset 0; 2 offsets" in as_json.stderr
    # a member says it when it has read its partitions, and again when it has nothing left to read
    for printed in ("a\nb\n", ""):
        member = run("consume", topic, "--until-end", "--group", f"group-{topic}")
        assert member.stdout == printed
        assert member.stderr.split("\n", 1)[1] == held(stack, topic, "stopped at")
    # nobody says it who gets all that was asked for
    for words in (("-n", "2"), ("-o", "0:2", "-p", "0"), ("-p", "2"), ("--isolation-level", "read_uncommitted")):
        assert run("consume", topic, "--until-end", *words).stderr == "", words
    partly = run("consume", topic, "--until-end", "-p", "0", "-o", "1:4").stderr
    assert "partition 0: stopped at offset 2; 2 offsets from there on wait" in partly
    behind = run("consume", topic, "--until-end", "-p", "0", "-o", "4").stderr
    assert "partition 0: stopped at offset 4; 1 offset from there on waits" in behind


def test_consume_says_of_a_key_that_its_records_may_wait(run: Any, topic: str, producer: Producer) -> None:
    read = run("consume", topic, "--until-end", "--key", "new", "--all-partitions")
    assert read.stdout == "" and "partition 0: stopped at offset 2" in read.stderr
    # nor is it said that no record of the key is there, of a partition that cannot be read to its end
    for partition, said in ((1, "stopped at offset 0"), (2, "may have put it elsewhere")):
        key = next(each for each in map(str, range(100)) if partition_of_key(each.encode(), 3) == partition)
        told = run("consume", topic, "--until-end", "--key", key).stderr
        assert said in told and ("elsewhere" in told) == (partition == 2)


def test_a_transaction_that_has_ended_holds_nobody_up(run: Any, topic: str, producer: Producer) -> None:
    producer.commit_transaction(TIMEOUT_S)
    read = run("consume", topic, "--until-end", "-p", "0,1")
    assert (sorted(read.stdout.split()), read.stderr) == (["a", "b", "plain", "v", "v", "v", "v"], "")
    assert "last stable offset" not in run("topics", "describe", topic).stdout


@pytest.mark.parametrize("group", [False, True])
def test_a_follower_that_stands_still_says_so_once_and_goes_on_when_the_transaction_ends(
    stack: Stack, topic: str, producer: Producer, group: bool
) -> None:
    words = [sys.executable, "-m", "siltstone", "consume", topic, "--follow", "-f", r"%p %v\n"]
    words += ["--data", str(stack.data), *(("-g", f"group-{topic}") if group else ())]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as follower:
        try:
            assert follower.stdout is not None and follower.stderr is not None
            if group:
                assert "this member reads" in follower.stderr.readline()
            assert [follower.stderr.readline() for _ in range(3)] == held(stack, topic, "stands still at").splitlines(
                keepends=True
            )
            producer.commit_transaction(TIMEOUT_S)
            assert sorted(follower.stdout.readline() for _ in range(7)) == sorted(
                ["0 a\n", "0 b\n", *["0 v\n"] * 3, "1 plain\n", "1 v\n"]
            )
            follower.terminate()
            assert follower.wait(TIMEOUT_S) == 0 and follower.stderr.read() == ""
        finally:
            follower.kill()


def test_get_says_that_the_key_may_have_records_that_wait(run: Any, topic: str, producer: Producer) -> None:
    missing = run("get", topic, "new", "--all-partitions", code=1).stderr
    assert f"no committed record with the key 'new' is in any partition of {topic}, and not all" in missing
    assert f"{topic} partition 0: committed records end at offset 2; 3 offsets from there on wait" in missing
    assert f"{topic} partition 1: committed records end at offset 0; 2 offsets" in missing
    assert f"`{FIND} --data " in missing and "elsewhere" not in missing
    found = run("get", topic, "old", "--all-partitions")
    assert found.stdout == "b\n" and "committed records end at offset 2; 3 offsets" in found.stderr
    assert f"newer records of the key may be among these; `{FIND} --data " in found.stderr
    producer.commit_transaction(TIMEOUT_S)
    after = run("get", topic, "new", "--all-partitions")
    assert (after.stdout, after.stderr) == ("v\n", "")


def test_topics_describe_shows_where_committed_records_end(
    run: Any, stack: Stack, topic: str, producer: Producer
) -> None:
    shown = run("topics", "describe", topic)
    assert re.search(r"high watermark +last stable offset\n", shown.stdout)
    assert re.search(r"^ +0 .* 5 +2\n +1 .* 2 +0\n +2 .* 0 +0$", shown.stdout, re.MULTILINE), shown.stdout
    assert "5 offsets of 2 partitions, from the last stable offset on, wait for" in shown.stdout
    assert f"`{FIND} --data {stack.data}`" in shown.stdout
    partitions = json.loads(run("topics", "describe", topic, "--json").stdout)["partitions"]
    assert [(each["high_watermark"], each["last_stable_offset"]) for each in partitions] == [(5, 2), (2, 0), (0, 0)]


def test_groups_describe_says_what_waits_for_a_transaction(
    run: Any, stack: Stack, topic: str, producer: Producer
) -> None:
    group = f"group-{topic}"
    consumer = Consumer({"bootstrap.servers": stack.bootstrap, "group.id": group, "enable.auto.commit": False})
    places = [TopicPartition(topic, 0, 2), TopicPartition(topic, 1, 1), TopicPartition(topic, 2, 0)]
    consumer.assign(places)
    consumer.commit(offsets=places, asynchronous=False)
    consumer.close()
    shown = run("groups", "describe", group).stdout
    assert f"{topic} partition 0: waits for the end of an open transaction, which holds back 3 offsets\n" in shown
    assert shown.count("waits for the end") == 1 and shown.endswith(
        f"`{FIND} --data {stack.data}` shows the open transactions\n"
    )
    partitions = json.loads(run("groups", "describe", group, "--json").stdout)["partitions"]
    assert [(each["log_end"], each["last_stable_offset"]) for each in partitions] == [(5, 2), (2, 0), (0, 0)]
    producer.commit_transaction(TIMEOUT_S)
    assert "transaction" not in run("groups", "describe", group).stdout


def test_topics_explain_names_the_commands_for_an_open_transaction(
    run: Any, stack: Stack, topic: str, producer: Producer
) -> None:
    run("topics", "alter", topic, "--config", "cleanup.policy=compact", "--yes")
    said = run("topics", "explain", topic).stdout
    assert f"`{FIND} --data {stack.data}` names it" in said
    assert f"`siltstone transactions abort ID --data {stack.data}` ends it" in said
