"""`siltstone produce`, `consume` and `record diagnose` against a running `siltstone dev`, as a user types them."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from runtime.clock import SystemClock
from siltstone.demo.stack import Stack, running_stack
from siltstone.kafka.client import connected
from siltstone.kafka.partitioner import partition_of_key
from tests.fixtures.commands import runner
from tests.fixtures.waiting import wait_until
from wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)

TIMEOUT_S = 60
COMPACTED = {"cleanup.policy": "compact", "delete.retention.ms": "0"}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    data = tmp_path_factory.mktemp("records") / "data"
    data.mkdir()
    options = ["--agents", "2", "--compactors", "0", "--set", "produce.linger.ms=5"]
    with running_stack(data, SystemClock(), options=options) as stack:
        yield stack


@pytest.fixture
def run(stack: Stack) -> Any:
    return runner({"SILTSTONE_BOOTSTRAP": stack.bootstrap})


@pytest.fixture
def diagnose(run: Any, stack: Stack) -> Any:
    def diagnose(topic: str, partition: int, offset: int, code: int = 0, data: Path | None = None) -> Any:
        place = ("--data", str(data or stack.data))
        return json.loads(
            run("record", "diagnose", topic, str(partition), str(offset), *place, "--json", code=code).stdout
        )

    return diagnose


@pytest.fixture
def topic(run: Any) -> str:
    name = f"topic-{uuid.uuid4().hex[:8]}"
    run("topics", "create", name, "--partitions", "3")
    return name


def read_json(run: Any, topic: str, *words: str) -> Sequence[Any]:
    lines = run("consume", topic, "--json", *words).stdout.splitlines()
    return sorted(map(json.loads, lines), key=lambda each: (each["partition"], each["offset"]))


def delete_records(stack: Stack, topic: str, partition: int, before: int) -> None:
    async def delete() -> None:
        asked = DeleteRecordsPartition(partition_index=partition, offset=before)
        request = DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name=topic, partitions=[asked])], timeout_ms=TIMEOUT_S * 1000
        )
        async with connected(stack.bootstrap) as client:
            answer = await client.call(request, DeleteRecordsResponse)
            assert answer.topics[0].partitions[0].error_code == 0

    asyncio.run(delete())


def test_lines_are_written_and_read_and_where_they_went_is_told(run: Any, topic: str) -> None:
    written = run("produce", topic, stdin=b"a\nb\n\nlast")
    summary = written.stdout
    assert summary.startswith(f"wrote 4 records to {topic}: ") and "@0..3" in summary
    assert run("consume", topic, "--until-end").stdout == "a\nb\n\nlast\n"
    verbose = run("produce", topic, "-p", "1", "-v", stdin=b"x\ny\n")
    assert verbose.stdout.splitlines()[-1].startswith(f"{topic} 1@")
    assert "wrote 2 records" in verbose.stderr
    told = json.loads(run("produce", topic, "--json", "-p", "2", stdin=b"z\n").stdout)
    assert told["written"] == 1 and told["partitions"][0]["partition"] == 2


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_keys_headers_and_timestamps_come_back_as_they_were_given(run: Any, topic: str, codec: str) -> None:
    words = ("-f", r"%T\t%k\t%h\t%v\n", "-H", "source=cli", "-z", codec)
    lines = b"".join(b"%d\tkey-%d\tn=%d\tvalue %d\n" % (1_700_000_000_000 + n, n % 7, n, n) for n in range(40))
    run("produce", topic, *words, stdin=lines)
    found = read_json(run, topic, "--until-end")
    assert len(found) == 40
    for each in found:
        number = int(each["value"].split()[1])
        assert each["partition"] == partition_of_key(each["key"].encode(), 3) and each["key"] == f"key-{number % 7}"
        assert each["timestamp_ms"] == 1_700_000_000_000 + number
        assert each["headers"] == [{"name": "source", "value": "cli"}, {"name": "n", "value": str(number)}]


def test_a_file_is_read_and_bytes_survive(run: Any, topic: str, tmp_path: Path) -> None:
    blob = gzip.compress(b"anything")
    (tmp_path / "in").write_text(f"{os.urandom(4).hex()} {blob.hex()}\n")
    run("produce", topic, "--file", str(tmp_path / "in"), "-f", r"%k{hex} %v{hex}\n")
    raw = run("consume", topic, "--until-end", "-f", "%v").stdout_bytes
    assert raw == blob
    [found] = read_json(run, topic, "--until-end")
    assert "value_base64" in found


def test_a_tombstone_is_a_key_without_a_value(run: Any, topic: str) -> None:
    assert "wrote 1 record " in run("produce", topic, "-k", "alice", "--tombstone").stdout
    run("produce", topic, "-Z", "-f", r"%k:%v\n", stdin=b"bob:1\nbob:\n")
    found = [(each["key"], each["value"]) for each in read_json(run, topic, "--until-end")]
    assert sorted(found, key=str) == [("alice", None), ("bob", "1"), ("bob", None)]


def test_every_record_that_fails_is_told_and_other_partitions_are_written(run: Any) -> None:
    name = f"topic-{uuid.uuid4().hex[:8]}"
    run("topics", "create", name, "--partitions", "1", "--config", "cleanup.policy=compact")
    refused = run("produce", name, stdin=b"no key\n", code=1)
    assert "error: record 1: INVALID_RECORD" in refused.stderr and "; 1 record failed" in refused.stdout
    mixed = run("produce", name, "-f", r"%p:%k:%v\n", stdin=b"0:a:1\n5:b:2\nnonsense\n0:c:3\n", code=1)
    assert f"error: record 2: topic {name} has no partition 5" in mixed.stderr
    assert "error: record 3: no ':' after its partition" in mixed.stderr and "remedy: " in mixed.stderr
    assert [each["key"] for each in read_json(run, name, "--until-end")] == ["a", "c"]


def test_after_a_failed_record_its_partition_takes_no_more_unless_told_to_keep_going(run: Any) -> None:
    name = f"topic-{uuid.uuid4().hex[:8]}"
    run("topics", "create", name, "--partitions", "1", "--config", "message.timestamp.after.max.ms=3600000")
    lines = b"1700000000000 a\n4000000000000 b\n1700000000000 c\n4000000000000 d\n1700000000000 e\n"
    strict = run("produce", name, "-f", r"%T %v\n", stdin=lines, code=1)
    assert "error: record 2: INVALID_TIMESTAMP" in strict.stderr
    assert "error: records 3 to 5: not written: record 2 of partition 0 failed before it" in strict.stderr
    assert "wrote 1 record " in strict.stdout and "; 4 records failed" in strict.stdout
    assert [each["value"] for each in read_json(run, name, "--until-end")] == ["a"]
    told = run("produce", name, "-f", r"%T %v\n", "--keep-going", stdin=lines, code=1).stderr
    assert "error: record 2: INVALID_TIMESTAMP" in told and "error: record 4: INVALID_TIMESTAMP" in told
    assert [each["value"] for each in read_json(run, name, "--until-end")] == ["a", "a", "c", "e"]


def test_batches_that_are_too_large_are_cut_and_a_record_that_is_too_large_is_told(run: Any) -> None:
    name = f"topic-{uuid.uuid4().hex[:8]}"
    run("topics", "create", name, "--partitions", "1", "--config", "max.message.bytes=2000")
    lines = [b"%0300d" % number for number in range(50)]
    lines[20] = b"y" * 3000
    told = run("produce", name, "--keep-going", stdin=b"\n".join(lines), code=1)
    assert told.stderr.count("error: ") == 1 and "error: record 21: " in told.stderr
    assert "MESSAGE_TOO_LARGE" in told.stderr
    assert [int(each["value"]) for each in read_json(run, name, "--until-end")] == [*range(20), *range(21, 50)]


def test_wrong_words_are_usage_and_near_names_are_told(run: Any, topic: str) -> None:
    for words in (
        ("produce", topic, "-f", "%x"),
        ("produce", topic, "-H", "name"),
        ("produce", topic, "-z", "brotli"),
        ("consume", topic, "-o", "soon"),
        ("consume", topic, "-p", "x"),
        ("consume", topic, "--json", "-f", "%v"),
        ("consume",),
    ):
        assert "rror: " in run(*words, code=2).stderr, words
    missing = f"{topic}s"
    for command in ("produce", "consume"):
        assert f"did you mean {topic!r}?" in run(command, missing, code=1).stderr
    assert "has no partition 9" in run("consume", topic, "-p", "9", code=1).stderr


def test_reading_begins_and_ends_where_it_is_told(run: Any, topic: str) -> None:
    base = 1_700_000_000_000
    run("produce", topic, "-p", "0", "-f", r"%T %v\n", stdin=b"".join(b"%d %d\n" % (base + n, n) for n in range(10)))

    def values(*words: str) -> list[int]:
        return [int(line) for line in run("consume", topic, "-p", "0", *words).stdout.split()]

    assert values("-o", "3:6") == [3, 4, 5]
    assert values("-o", "-2", "--until-end") == [8, 9]
    assert values("-o", "+8", "--until-end") == [8, 9]
    assert values("-o", f"@{base + 4}:@{base + 6}") == [4, 5]
    assert values("-o", "start", "-n", "3") == [0, 1, 2]
    assert values("-o", "end", "--until-end") == [] == values("-o", "@2099-01-01", "--until-end")
    past = run("consume", topic, "-p", "0", "-o", "500", "--until-end")
    assert past.stdout == "" and "has offsets 0 to 9: reading from offset 10, not from " in past.stderr


def test_the_newest_value_of_a_key_is_found_however_far_back_it_is(run: Any, topic: str) -> None:
    run("produce", topic, "-f", r"%k:%v\n", stdin=b"alice:1\nalice:2\nbob:1\n")
    at_home = str(partition_of_key(b"alice", 3))
    run("produce", topic, "-p", at_home, stdin=b"".join(b"%d\n" % number for number in range(3_000)))
    assert run("get", topic, "alice").stdout == "2\n"
    assert json.loads(run("get", topic, "alice", "--json").stdout)["value"] == "2"
    assert [each["value"] for each in read_json(run, topic, "--key", "alice", "--until-end")] == ["1", "2"]
    missing = run("get", topic, "carol", code=1)
    assert missing.stdout == "" and "no record with the key 'carol'" in missing.stderr
    # given a producer that places keys otherwise
    elsewhere = str((partition_of_key(b"carol", 3) + 1) % 3)
    run("produce", topic, "-p", elsewhere, "-k", "carol", stdin=b"far\n")
    assert "--all-partitions" in run("get", topic, "carol", code=1).stderr
    assert run("get", topic, "carol", "--all-partitions").stdout == "far\n"
    assert len(read_json(run, topic, "--key", "carol", "--all-partitions", "--until-end")) == 1
    nothing = run("consume", topic, "--key", "carol", "--until-end")
    assert nothing.stdout == "" and "--all-partitions looks in all of them" in nothing.stderr
    run("produce", topic, "-k", "alice", "--tombstone")
    assert "deleted by the tombstone at offset" in run("get", topic, "alice", code=1).stderr


def test_a_follower_prints_what_comes_until_it_is_stopped(run: Any, topic: str, stack: Stack) -> None:
    command = [sys.executable, "-m", "siltstone", "consume", topic, "--bootstrap", stack.bootstrap, "-f", r"%v\n"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as follower:
        try:
            assert follower.stdout is not None
            for number in range(3):
                run("produce", topic, stdin=b"news %d\n" % number)
                assert follower.stdout.readline() == f"news {number}\n"
            follower.terminate()
            assert follower.wait(TIMEOUT_S) == 0
        finally:
            follower.kill()


def test_a_reader_that_is_stopped_before_its_end_says_so(run: Any, topic: str, stack: Stack) -> None:
    run("produce", topic, stdin=b"one\ntwo\n")
    words = [sys.executable, "-m", "siltstone", "consume", topic, "-n", "3", "--bootstrap", stack.bootstrap]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None and reader.stderr is not None
        assert [reader.stdout.readline() for _ in range(2)] == ["one\n", "two\n"]
        reader.send_signal(signal.SIGINT)
        assert reader.wait(TIMEOUT_S) == 130
        assert reader.stderr.read() == "stopped before the end: not all records were printed\n"


def test_what_a_slow_pipe_brings_is_written_before_the_pipe_ends(run: Any, topic: str, stack: Stack) -> None:
    command = [sys.executable, "-m", "siltstone", "produce", topic, "--bootstrap", stack.bootstrap]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as producer:
        assert producer.stdin is not None
        producer.stdin.write(b"early\nhalf a li")
        producer.stdin.flush()
        wait_until(lambda: run("consume", topic, "--until-end").stdout, TIMEOUT_S)
        producer.stdin.write(b"ne\n")
        out, _ = producer.communicate(timeout=TIMEOUT_S)
    assert producer.returncode == 0 and out.startswith(b"wrote 2 records")
    assert sorted(run("consume", topic, "--until-end").stdout.splitlines()) == ["early", "half a line"]


def test_a_writer_that_is_interrupted_writes_whole_records_only(run: Any, topic: str, stack: Stack) -> None:
    command = [sys.executable, "-m", "siltstone", "produce", topic, "--bootstrap", stack.bootstrap, "-v"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as producer:
        assert producer.stdin is not None and producer.stdout is not None
        producer.stdin.write(b"whole\nhal")
        producer.stdin.flush()
        assert producer.stdout.readline().startswith(topic.encode())
        producer.send_signal(signal.SIGINT)
        assert producer.wait(TIMEOUT_S) == 130
        assert producer.stderr is not None and b"wrote 1 record" in producer.stderr.read()
    assert run("consume", topic, "--until-end").stdout == "whole\n"


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_of_the_output_that_leaves_ends_it(run: Any, topic: str, stack: Stack, unbuffered: str) -> None:
    run("produce", topic, stdin=b"".join(b"%0100d\n" % number for number in range(5_000)))
    words = f"{sys.executable} -m siltstone consume {topic} --bootstrap {stack.bootstrap}"
    done = subprocess.run(
        ["/bin/sh", "-c", f"{words} | head -n 2"],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    )
    assert len(done.stdout.splitlines()) == 2 and done.stderr == ""


def test_a_record_is_found_down_to_its_bytes(run: Any, topic: str, stack: Stack, diagnose: Any) -> None:
    run("produce", topic, "-p", "1", "-z", "zstd", "-H", "a=b", stdin=b"zero\none\ntwo\n")
    found = diagnose(topic, 1, 1)
    assert found["verdict"] == "found" and found["batch"]["codec"] == "zstd" and found["batch"]["crc_matches"]
    assert found["record"]["value"] == "one" and found["record"]["headers"] == [{"name": "a", "value": "b"}]
    assert found["files"] and found["home"]["key"].endswith(".silt")
    assert diagnose(topic, 1, 3)["verdict"] == "not written yet"
    shown = run("record", "diagnose", topic, "1", "2", "--data", str(stack.data)).stdout
    assert "CRC-32C" in shown and "two" in shown
    assert (
        "has no partition 8" in run(*("record", "diagnose", topic, "8", "0", "--data", str(stack.data)), code=1).stderr
    )


def test_a_record_below_the_log_start_is_told_so_and_readers_go_on(
    run: Any, topic: str, stack: Stack, diagnose: Any
) -> None:
    run("produce", topic, "-p", "0", stdin=b"a\nb\nc\n")
    delete_records(stack, topic, 0, before=2)
    found = diagnose(topic, 0, 1)
    assert found["verdict"] == "below the log start" and found["log_start_offset"] == 2 and not found["fault"]
    read = run("consume", topic, "-p", "0", "-o", "0", "--until-end")
    assert read.stdout == "c\n" and "reading from offset 2" in read.stderr


def test_a_record_that_compaction_removed_is_told_with_what_superseded_it(
    run: Any, stack: Stack, diagnose: Any
) -> None:
    name = f"topic-{uuid.uuid4().hex[:8]}"
    configs = [word for pair in COMPACTED.items() for word in ("--config", "=".join(pair))]
    run("topics", "create", name, "--partitions", "1", *configs)
    for line in (b"alice:1", b"bob:1", b"alice:2", b"carol:1"):
        run("produce", name, "-f", "%k:%v", stdin=line)
    run("compact", name, "--now", "--timeout", "60", "--data", str(stack.data))
    assert [each["offset"] for each in read_json(run, name, "--until-end")] == [1, 2, 3]
    found = diagnose(name, 0, 0)
    assert found["verdict"] == "compacted away" and not found["fault"]
    assert found["former_record"]["key"] == "alice" and found["former_record"]["value"] == "1"
    assert found["superseded_by"] == 2
    assert {each["level"] for each in found["files"]} >= {0, 1}
    shown = run("record", "diagnose", name, "0", "0", "--data", str(stack.data)).stdout
    assert "compacted away: superseded: offset 2 has the same key, alice" in shown
