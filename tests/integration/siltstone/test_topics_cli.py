"""`siltstone topics` and `cluster` on a running stack: what goes is said first, and lists say what is there."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.shell_completion import ShellComplete

from runtime.clock import SystemClock
from siltstone.cli import main
from siltstone.cli.options import completion
from siltstone.demo.stack import Stack, running_stack
from tests.fixtures.commands import runner
from tests.integration.siltstone.test_groups_cli import until_agents_agree


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    data = tmp_path_factory.mktemp("topics") / "data"
    data.mkdir()
    options = ["--agents", "2", "--compactors", "0", "--set", "produce.linger.ms=5"]
    with running_stack(data, SystemClock(), options=options) as stack:
        asyncio.run(until_agents_agree(stack.bootstrap.split(",")))
        yield stack


@pytest.fixture
def run(stack: Stack) -> Any:
    return runner({"SILTSTONE_BOOTSTRAP": stack.bootstrap})


@pytest.fixture
def topic(run: Any) -> str:
    name = f"topic-{uuid.uuid4().hex[:8]}"
    run("topics", "create", name, "--partitions", "1")
    return name


def test_several_topics_are_created_at_once_and_listed_with_records_sizes_and_policies(run: Any) -> None:
    names = [f"many-{uuid.uuid4().hex[:8]}" for _ in range(3)]
    made = run("topics", "create", *names, "--partitions", "2", "--config", "cleanup.policy=compact")
    assert made.stdout.splitlines() == [f"created {name} with 2 partitions" for name in names]
    run("produce", names[0], "-k", "a", "--tombstone")
    rows = {row["name"]: row for row in json.loads(run("topics", "list", "--json").stdout)}
    assert [rows[name]["records"] for name in names] == [1, 0, 0]
    assert rows[names[0]]["size_bytes"] > 0 == rows[names[1]]["size_bytes"]
    assert {rows[name]["policy"] for name in names} == {"compact"}
    shown = run("topics", "list").stdout
    assert "<= 1" in shown and "policy" in shown
    assert set(names) <= set(run("topics", "list", "--names").stdout.split())


def test_a_shell_completes_the_names_of_topics(
    stack: Stack, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def offered(*words: str, incomplete: str = topic[:8]) -> list[str]:
        complete = ShellComplete(main, {}, "siltstone", "_SILTSTONE_COMPLETE")
        return [item.value for item in complete.get_completions(list(words), incomplete)]

    monkeypatch.setenv("SILTSTONE_BOOTSTRAP", "127.0.0.1:1")
    assert offered("topics", "describe") == []  # no agent is there
    monkeypatch.setattr(completion, "TIMEOUT_MS", 30_000)  # a busy machine may take longer than anybody would wait
    monkeypatch.setenv("SILTSTONE_BOOTSTRAP", stack.bootstrap)
    assert topic in offered("topics", "describe") and topic in offered("consume", "--json")
    assert topic in offered("produce", "--bootstrap", stack.bootstrap)
    assert offered("get", incomplete="no-such-") == []
    assert offered("topics", incomplete="de") == ["delete", "describe"]
    # --data names the agents, also of commands that read the metadata; where nothing runs there are no names
    monkeypatch.delenv("SILTSTONE_BOOTSTRAP")
    assert topic in offered("record", "diagnose", "--data", str(stack.data))
    assert offered("record", "diagnose", "--data", str(tmp_path)) == []


def test_a_change_to_compaction_says_what_goes_and_asks(run: Any, topic: str) -> None:
    run("produce", topic, "-f", r"%k:%v\n", stdin=b"a:1\na:2\n")
    run("produce", topic, stdin=b"no key\n")
    change = ("topics", "alter", topic, "--config", "cleanup.policy=compact")
    asked = run(*change, code=2)
    assert "removes records without a key: 1 of 3 records\n" in asked.stderr and "remedy: add --yes" in asked.stderr
    assert json.loads(run("topics", "describe", topic, "--json").stdout)["configs"]
    assert "delete" in policy(run, topic)
    run(*change, "--yes")
    assert policy(run, topic) == "compact"


def policy(run: Any, topic: str) -> str:
    rows = json.loads(run("topics", "list", "--json").stdout)
    return next(row["policy"] for row in rows if row["name"] == topic)


def test_a_shorter_retention_says_what_goes_and_a_longer_one_does_not_ask(run: Any, topic: str) -> None:
    old = b"".join(b"1700000000000 %d\n" % number for number in range(4))
    run("topics", "alter", topic, "--config", "retention.ms=-1")
    run("produce", topic, "-f", r"%T %v\n", stdin=old)
    run("produce", topic, stdin=b"new\n")
    asked = run("topics", "alter", topic, "--config", "retention.ms=3600000", code=2)
    assert "the new retention.ms, 1h00m, removes 4 records of 5 offsets" in asked.stderr
    reset = run("topics", "alter", topic, "--delete-config", "retention.ms", code=2)
    assert "removes 4 records of 5 offsets" in reset.stderr
    assert "the new retention.bytes" in run("topics", "alter", topic, "--config", "retention.bytes=1", code=2).stderr
    assert "warning" not in run("topics", "alter", topic, "--config", "retention.bytes=1000000").stderr
    run("topics", "alter", topic, "--config", "retention.ms=3600000", "--yes")


def test_a_shorter_retention_of_the_cluster_names_the_topics_that_lose_records_and_asks(run: Any, topic: str) -> None:
    # given a topic that follows the cluster, and one with a retention of its own, both with old records
    own = f"{topic}-own"
    run("topics", "create", own, "--partitions", "1", "--config", "retention.ms=-1")
    run("cluster", "config", "set", "log.retention.ms=-1")
    for name in (topic, own):
        run("produce", name, "-f", r"%T %v\n", stdin=b"1700000000000 old\n1700000000001 old\n")
        run("produce", name, stdin=b"new\n")
    # when the retention of the cluster gets shorter, in any unit, by a value or by a reset
    for words in (("log.retention.minutes=60", "--delete", "log.retention.ms"), ("--delete", "log.retention.ms")):
        asked = run("cluster", "config", "set", *words, code=2).stderr
        # then the topic that follows it is named, the other is not, and nothing was set
        assert f"topic {topic}: the new retention.ms" in asked and "removes 2 records of 3 offsets" in asked
        assert own not in asked and "remedy: add --yes" in asked
    assert "log.retention.ms" in run("cluster", "config", "get").stdout
    compacting = run("cluster", "config", "set", "log.cleanup.policy=compact", code=2).stderr
    assert f"topic {topic}: compaction removes records without a key" in compacting
    assert f"topic {topic}: " in run("cluster", "config", "set", "log.retention.bytes=1", code=2).stderr
    # and a longer one, one that loses nothing and one that has nothing to do with records are set without a question
    run("cluster", "config", "set", "log.retention.bytes=1000000000", "log.roll.ms=1000000", "log.retention.hours=-1")
    run("cluster", "config", "set", "--delete", "log.retention.bytes", "--delete", "log.roll.ms")
    run("topics", "delete", own, "--yes")
    run("cluster", "config", "set", "--delete", "log.retention.ms", "--delete", "log.retention.hours", "--yes")


def test_trim_removes_the_oldest_records_and_asks(run: Any, topic: str) -> None:
    run("produce", topic, stdin=b"a\nb\nc\nd\n")
    assert "remedy: add --yes" in run("topics", "trim", topic, "--before", "3", code=2).stderr
    trimmed = run("topics", "trim", topic, "--before", "-1", "--yes").stdout
    assert f"trimmed {topic}: 3 offsets in 1 partition" in trimmed
    assert run("consume", topic, "--until-end").stdout == "d\n"
    assert "nothing to remove" in run("topics", "trim", topic, "--before", "2", "--yes").stdout
    # a slip above the end removes nothing
    refused = run("topics", "trim", topic, "--before", "99", "--yes", code=1).stderr
    assert f"error: partition 0 of topic {topic} ends at offset 4, before 99; nothing was removed" in refused
    assert run("consume", topic, "--until-end").stdout == "d\n"
    assert "trimmed" in run("topics", "trim", topic, "--before", "end", "--yes").stdout


def test_describe_shows_overrides_first_and_the_largest_number_in_words(run: Any, topic: str) -> None:
    run("topics", "alter", topic, "--config", "retention.ms=-1")
    lines = [line.split() for line in run("topics", "describe", topic).stdout.splitlines() if line.strip()]
    at = next(number for number, line in enumerate(lines) if line[0] == "config")
    first = next(line for line in lines[at + 1 :] if line[0][0].isalpha())
    assert first[:3] == ["retention.ms", "never", "(-1)"]
    flush = next(line for line in lines if line[0] == "max.compaction.lag.ms")
    assert flush[1] == "never"


def test_the_cluster_shows_its_agents_and_its_configs_are_set_and_reset(run: Any, stack: Stack, topic: str) -> None:
    shown = json.loads(run("cluster", "info", "--json").stdout)
    assert sorted(each["address"] for each in shown["agents"]) == sorted(stack.bootstrap.split(","))
    assert shown["cluster_id"] and shown["topics"] >= 1 and shown["partitions"] >= 1
    assert shown["cluster_id"] in run("cluster", "info").stdout
    assert "no cluster-wide config is set" in run("cluster", "config", "get").stdout
    run("cluster", "config", "set", "log.retention.ms=7200000", "--yes")
    assert json.loads(run("cluster", "config", "get", "--json").stdout)[0]["value"] == "7200000"
    [one] = json.loads(run("cluster", "config", "get", "log.retention.ms", "--json").stdout)
    assert one["value"] == "7200000"
    # when a topic resets its own retention, the cluster's counts, and what goes by it is said
    run("topics", "alter", topic, "--config", "retention.ms=-1")
    run("produce", topic, "-f", r"%T %v\n", stdin=b"1700000000000 old\n")
    assert (
        "the new retention.ms, 2h00m, removes 1 record of 1 offset"
        in run("topics", "alter", topic, "--delete-config", "retention.ms", code=2).stderr
    )
    run("cluster", "config", "set", "--delete", "log.retention.ms", "--yes")
    assert "no cluster-wide config is set" in run("cluster", "config", "get").stdout
    assert "did you mean 'log.retention.ms'?" in run("cluster", "config", "get", "log.retention.m", code=1).stderr
    assert "is not a whole number" in run("cluster", "config", "set", "log.retention.ms=soon", code=1).stderr
