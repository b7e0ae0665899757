"""Kafka's own command-line tools, as an operator uses them one after the other."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.servers.kafka import find_jars
from tests.conformance.cluster import Cluster
from tests.conformance.tool_rows import SEEN_FILE, TOOL_ROWS, SeenTools, last_seen
from tests.fixtures.waiting import wait_until

TIMEOUT_S = 60
JVM = ("-Xmx128M", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
Run = Callable[..., str]


@pytest.fixture
def run(cluster: Cluster) -> Run:
    jars = find_jars()
    if jars is None:
        pytest.skip("Kafka's jars (KAFKA_JARS or KAFKA_HOME) and a JVM are not at hand")

    def run(main: str, *words: str, stdin: str = "") -> str:
        command = jars.command(main, ["--bootstrap-server", cluster.bootstrap, *words], JVM)
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=TIMEOUT_S)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


TOPICS = "org.apache.kafka.tools.TopicCommand"
CONFIGS = "kafka.admin.ConfigCommand"
OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
DELETE = "org.apache.kafka.tools.DeleteRecordsCommand"
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
WRITE = "org.apache.kafka.tools.ConsoleProducer"
READ = "org.apache.kafka.tools.consumer.ConsoleConsumer"


@pytest.mark.timeout(300)
def test_an_operator_finds_kafkas_tools_working(run: Run, cluster: Cluster, tmp_path: Path) -> None:
    topic = cluster.name()
    run(TOPICS, "--create", "--topic", topic, "--partitions", "2", "--config", "retention.ms=1000000")
    run(TOPICS, "--alter", "--topic", topic, "--partitions", "3")
    described = run(TOPICS, "--describe", "--topic", topic)
    assert "PartitionCount: 3" in described and "retention.ms=1000000" in described
    # records
    lines = "".join(f"key{number}\tvalue {number}\n" for number in range(50))
    run(WRITE, "--topic", topic, "--property", "parse.key=true", "--compression-codec", "zstd", stdin=lines)
    words = ["--topic", topic, "--group", topic, "--from-beginning", "--max-messages", "50"]
    read = run(READ, *words, "--property", "print.key=true")
    assert sorted(read.splitlines()) == sorted(lines.splitlines())
    ends = [line.split(":") for line in run(OFFSETS, "--topic", topic).split()]
    assert sum(int(end) for _, _, end in ends) == 50
    # groups
    wait_until(lambda: topic in run(GROUPS, "--list").split(), TIMEOUT_S)
    rows = [line.split() for line in run(GROUPS, "--describe", "--group", topic).splitlines() if topic in line]
    assert {int(row[2]): int(row[5]) for row in rows} == dict.fromkeys({int(row[2]) for row in rows}, 0), "no lag"
    run(GROUPS, "--reset-offsets", "--group", topic, "--topic", topic, "--to-earliest", "--execute")
    rows = [line.split() for line in run(GROUPS, "--describe", "--group", topic).splitlines() if topic in line]
    assert sum(int(row[5]) for row in rows) == 50, "all of it is to be read again"
    run(GROUPS, "--delete", "--group", topic)
    # configs, deletion
    run(CONFIGS, "--alter", "--entity-type", "topics", "--entity-name", topic, "--add-config", "retention.ms=2000000")
    changed = run(CONFIGS, "--describe", "--entity-type", "topics", "--entity-name", topic)
    assert "retention.ms=2000000" in changed
    plan = tmp_path / "delete.json"
    plan.write_text(json.dumps({"partitions": [{"topic": topic, "partition": 0, "offset": -1}], "version": 1}))
    run(DELETE, "--offset-json-file", str(plan))
    assert f"{topic}:0:" in run(OFFSETS, "--topic", topic, "--time", "earliest")
    run(TOPICS, "--delete", "--topic", topic)
    assert topic not in run(TOPICS, "--list").split()


@pytest.mark.timeout(600)
def test_the_tools_exit_as_the_page_about_coverage_says(cluster: Cluster, run: Run, tmp_path: Path) -> None:
    jars = find_jars()
    assert jars is not None
    topic = cluster.name()
    run(TOPICS, "--create", "--topic", topic, "--partitions", "1", "--replication-factor", "2")
    shown = re.search(r"Replicas: (\d+),(\d+)", run(TOPICS, "--describe", "--topic", topic))
    assert shown is not None
    (tmp_path / "EMPTY").touch()
    given = {"NODE": shown[1], "TOPIC": topic, "EMPTY": str(tmp_path / "EMPTY"), "ADDRESS": cluster.bootstrap}
    for name, replicas in (("SAME", [int(shown[1]), int(shown[2])]), ("OTHER", [int(shown[1])])):
        plan = {"version": 1, "partitions": [{"topic": topic, "partition": 0, "replicas": replicas}]}
        (tmp_path / name).write_text(json.dumps(plan))
        given[name] = str(tmp_path / name)
    start = {"version": 1, "partitions": [{"topic": topic, "partition": 0, "offset": 0}]}
    (tmp_path / "START").write_text(json.dumps(start))
    given["START"] = str(tmp_path / "START")
    wrong: list[tuple[object, int, str]] = []
    codes: dict[str, int] = {}
    for row in TOOL_ROWS:
        words = [given.get(word, word) for word in row.words.split()]
        address = () if "ADDRESS" in row.words else ("--bootstrap-server", cluster.bootstrap)
        command = jars.command(row.main, [*address, *words], JVM)
        done = subprocess.run(command, input="", capture_output=True, text=True, timeout=TIMEOUT_S)
        codes[row.command] = done.returncode
        output = done.stdout + done.stderr
        if done.returncode != row.code or row.says not in output:
            wrong.append((row, done.returncode, output[-1_000:]))
    assert wrong == []
    [clients] = jars.folder.glob("kafka-clients-*[0-9].jar")
    seen = SeenTools(clients.stem.removeprefix("kafka-clients-"), codes)
    kept = tmp_path / SEEN_FILE.name
    kept.write_text(seen.text())
    if seen.kafka == last_seen().kafka:
        assert seen.text() == SEEN_FILE.read_text(), f"copy {kept} to {SEEN_FILE}"


def test_the_run_that_was_kept_has_every_row_with_its_exit_code() -> None:
    assert last_seen().codes == {row.command: row.code for row in TOOL_ROWS}
