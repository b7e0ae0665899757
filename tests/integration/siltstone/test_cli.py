"""The commands against a running `siltstone dev`, as a user types them: exit codes, output and effects."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from runtime.clock import SystemClock
from siltstone.cli import main
from siltstone.demo.stack import Stack, running_stack
from siltstone.kafka.client import connected
from siltstone.ops.fsck import INVARIANTS
from wire.records import NewRecord, build_batch

RECORDS = 40


def run(*words: str) -> Result:
    # A future that an earlier command left behind is reported when it is collected: not within this command's output.
    gc.collect()
    return CliRunner().invoke(main, words)


def run_ok(*words: str) -> str:
    result = run(*words)
    assert result.exit_code == 0, result.output
    return result.stdout


def run_json(*words: str) -> Any:
    return json.loads(run_ok(*words, "--json"))


def write_records(bootstrap: str, topic: str, count: int) -> None:
    """One batch after another, in turn to the two partitions of the topic."""

    async def write() -> None:
        async with connected(bootstrap) as client:
            await client.create_topic(topic, partitions=2)
            for number in range(count):
                batch = build_batch([NewRecord(1_700_000_000_000 + number, None, f"value {number}".encode())])
                await client.produce(topic, number % 2, batch)

    asyncio.run(write())


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One `siltstone dev` for all tests of this module; it writes small files quickly."""
    data = tmp_path_factory.mktemp("cli") / "data"
    data.mkdir()
    options = ["--compactors", "0", "--set", "produce.linger.ms=5"]
    with running_stack(data, SystemClock(), options=options) as stack:
        write_records(stack.bootstrap, "written", RECORDS)
        yield stack


@dataclass(frozen=True)
class Topics:
    """`siltstone topics` on a stack."""

    bootstrap: str

    def __call__(self, *words: str) -> Result:
        return run("topics", *words, "--bootstrap", self.bootstrap)

    def names(self) -> Sequence[str]:
        return [topic["name"] for topic in run_json("topics", "list", "--bootstrap", self.bootstrap)]


@pytest.fixture
def topics(stack: Stack) -> Topics:
    return Topics(stack.bootstrap)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a `siltstone dev` that was stopped."""
    data = tmp_path_factory.mktemp("stopped") / "data"
    data.mkdir()
    options = ["--compactors", "0", "--set", "produce.linger.ms=5"]
    with running_stack(data, SystemClock(), options=options) as stack:
        write_records(stack.bootstrap, "kept", 3)
    return data


def test_a_topic_is_created_listed_described_altered_and_deleted(topics: Topics) -> None:
    created = topics("create", "orders", "--partitions", "3", "--config", "retention.ms=1000")
    assert (created.exit_code, created.stdout) == (0, "created orders with 3 partitions\n")
    assert "orders" in topics.names()
    described = json.loads(topics("describe", "orders", "--json").stdout)
    assert [each["partition"] for each in described["partitions"]] == [0, 1, 2]
    assert {"name": "retention.ms", "value": "1000", "source": "topic", "acts": True} in described["configs"]
    altered = topics("alter", "orders", "--delete-config", "retention.ms", "--config", "a", "--partitions", "5")
    assert altered.exit_code == 2  # "a" is not NAME=VALUE, so no request reached the agent
    altered = topics("alter", "orders", "--delete-config", "retention.ms", "--partitions", "5")
    assert (altered.exit_code, altered.stdout) == (0, "altered orders\n")
    described = json.loads(topics("describe", "orders", "--json").stdout)
    assert len(described["partitions"]) == 5
    assert all(each["source"] != "topic" for each in described["configs"] if each["name"] == "retention.ms")
    assert topics("delete", "orders", "--yes").stdout == "deleted orders\n"
    assert "orders" not in topics.names()


def test_growing_a_compacted_topic_warns_of_keys_that_move(topics: Topics) -> None:
    assert topics("create", "tables", "--partitions", "2", "--config", "cleanup.policy=compact").exit_code == 0
    grown = topics("alter", "tables", "--partitions", "3")
    assert (grown.exit_code, grown.stdout) == (0, "altered tables\n")
    assert grown.stderr.startswith(
        "warning: the topic is compacted, and clients now send some keys to another partition"
    )
    other = topics("alter", "tables", "--config", "cleanup.policy=delete", "--partitions", "4")
    assert (other.exit_code, other.stderr) == (0, "")


def test_what_the_agent_refuses_is_an_error_and_a_remedy(topics: Topics) -> None:
    assert topics("create", "twice").exit_code == 0
    again = topics("create", "twice")
    assert again.exit_code == 1
    assert again.stderr.startswith("error: create topic 'twice': TOPIC_ALREADY_EXISTS")
    assert "remedy: choose another name" in again.stderr
    assert topics("describe", "nothing").stderr.startswith("error: topic 'nothing': UNKNOWN_TOPIC_OR_PARTITION")
    assert "INVALID_CONFIG" in topics("create", "bad", "--config", "retention.ms=soon").stderr
    assert "bad" not in topics.names()


def test_a_remedy_fits_what_was_asked_for(topics: Topics) -> None:
    many = topics("create", "many", "--partitions", "200000")
    assert "allowed are 1 to 100000" in many.stderr and "removed" not in many.stderr
    assert "within the range" in many.stderr
    shrink = topics("alter", "written", "--partitions", "1")
    assert "added, never removed" in shrink.stderr
    bad = topics("create", "bad", "--config", "retention.mss=1")
    assert "remedy: correct the name or the value" in bad.stderr and "describe NAME" not in bad.stderr


def test_a_config_without_effect_is_told_when_it_is_set_and_when_it_is_shown(topics: Topics) -> None:
    configs = ("--config", "compression.type=gzip", "--config", "max.message.bytes=100000")
    created = topics("create", "zipped", *configs)
    assert created.exit_code == 0
    assert created.stderr.startswith(
        "note: compression.type is stored, but has no effect in this version: Codec to which a broker"
    )
    assert "max.message.bytes" not in created.stderr
    altered = topics("alter", "zipped", "--config", "remote.storage.enable=true", "--delete-config", "compression.type")
    assert altered.stderr.startswith("note: remote.storage.enable is stored") and altered.stderr.count("note:") == 1
    assert topics("create", "refused", "--config", "compression.type=none").stderr.count("note:") == 0
    rows = {line.split()[0]: line for line in topics("describe", "zipped").stdout.splitlines() if line.strip()}
    assert rows["remote.storage.enable"].rstrip().endswith("no effect")
    assert rows["max.message.bytes"].rstrip().endswith("acts")
    described = json.loads(topics("describe", "zipped", "--json").stdout)
    assert {each["name"]: each["acts"] for each in described["configs"]}["compression.type"] is False


def test_tables_name_what_they_show(topics: Topics) -> None:
    listed = topics("list").stdout
    assert "partitions" in listed and "written" in listed
    described = topics("describe", "written").stdout
    assert "high watermark" in described and str(RECORDS // 2) in described and "cleanup.policy" in described


def test_files_of_a_running_stack_are_listed(stack: Stack) -> None:
    rows = run_json("files", "list", "--data", str(stack.data), "--state", "live")
    assert sum(row["records"] for row in rows) == RECORDS
    assert {row["level"] for row in rows} == {0} and {row["state"] for row in rows} == {"live"}
    table = run_ok("files", "list", "--data", str(stack.data))
    assert rows[0]["key"] in table and "partitions" in table
    assert run_ok("files", "list", "--data", str(stack.data), "--level", "2") == "no files\n"


def test_a_file_is_inspected_down_to_its_batches(stack: Stack) -> None:
    key = run_json("files", "list", "--data", str(stack.data))[0]["key"]
    shown = run_ok("file", "inspect", key, "--data", str(stack.data), "--batches")
    assert key in shown and "extents" in shown and "codec" in shown and shown.endswith("sound\n")
    report = run_json("file", "inspect", key, "--object-store", (stack.data / "objects").as_uri())
    assert report["sound"] is True and report["extents"][0]["crc_matches"] is True


def test_a_file_is_inspected_by_its_id_down_to_its_records(stack: Stack) -> None:
    places = ["--data", str(stack.data)]
    file_ids = [row["file_id"] for row in run_json("files", "list", *places, "--state", "live")]
    found = [
        record
        for file_id in file_ids
        for record in run_json("file", "inspect", str(file_id), *places, "--records")["records"]
    ]
    # offsets are those of the commit, by partition
    written = {(each["partition"], each["offset"]): each["value"] for each in found if each["topic"] == "written"}
    assert written == {(n % 2, n // 2): f"value {n}" for n in range(RECORDS)}
    shown = run_ok("file", "inspect", str(file_ids[0]), *places, "--records")
    assert "written" in shown and "value 0" in shown and "0@0" in shown
    most = max(run_json("files", "list", *places, "--state", "live"), key=lambda each: each["records"])
    cut = run_json("file", "inspect", str(most["file_id"]), *places, "--records", "--limit", "1")
    assert len(cut["records"]) == 1 and cut["records_cut"] == (most["records"] > 1)
    # the store alone knows neither names nor the offsets of L0
    key = run_json("files", "list", *places)[0]["key"]
    alone = run_json("file", "inspect", key, "--object-store", (stack.data / "objects").as_uri(), "--records")
    assert {record["offset"] for record in alone["records"]} == {-1}
    missing = run("file", "inspect", "999999", *places)
    assert missing.exit_code == 1 and "the metadata has no file 999999" in missing.stderr


def test_a_key_that_is_not_there_is_an_error(stack: Stack) -> None:
    missing = run("file", "inspect", "l0/00/2026010100/none.silt", "--data", str(stack.data))
    assert missing.exit_code == 1
    assert "does not exist" in missing.stderr


def test_fsck_of_a_running_stack_is_clean(stack: Stack) -> None:
    shown = run_ok("fsck", "--data", str(stack.data))
    assert shown.endswith("clean\n")
    checked = run_json("fsck", "--data", str(stack.data), "--quick")
    assert checked["clean"] is True
    assert [each["id"] for each in checked["invariants"]] == list(INVARIANTS)
    assert checked["janitor"]["halted"] == "" and checked["janitor"]["adopted"] == checked["janitor"]["present"]


def test_fsck_starts_postgres_for_itself_where_nothing_runs_and_finds_what_is_broken(
    stopped: Path, tmp_path: Path
) -> None:
    (tmp_path / "aside").mkdir()
    roundabout = tmp_path / "aside" / os.path.relpath(stopped, tmp_path / "aside")
    assert ".." in roundabout.parts
    assert run_ok("fsck", "--data", str(roundabout)).endswith("clean\n")
    assert run_ok("doctor", "--data", str(roundabout)).strip().endswith("0 fail")
    key = run_json("files", "list", "--data", str(roundabout))[0]["key"]
    assert run_ok("file", "inspect", key, "--data", str(roundabout)).endswith("sound\n")
    # given a copy in which one object lost its last byte
    broken = tmp_path / "data"
    shutil.copytree(stopped, broken)
    victim = min((broken / "objects").rglob("*.silt"))
    victim.chmod(0o600)
    victim.write_bytes(victim.read_bytes()[:-1])
    # when fsck runs, then it names the object by its key and ends with exit code 1
    found = run("fsck", "--data", str(broken))
    assert found.exit_code == 1
    key = str(victim.relative_to(broken / "objects"))
    assert "FILE-1: live file" in found.stdout and key in found.stdout
    assert found.stdout.endswith("1 violation\n")
    # and inspect says it too
    inspected = run("file", "inspect", key, "--data", str(broken))
    assert inspected.exit_code == 1


def test_a_damaged_batch_is_told_by_diagnose(stopped: Path, tmp_path: Path) -> None:
    # given a stopped stack with one changed byte in a record
    data = tmp_path / "data"
    shutil.copytree(stopped, data)
    [victim] = [each for each in (data / "objects").rglob("*.silt") if b"value 2" in each.read_bytes()]
    victim.chmod(0o600)
    victim.write_bytes(victim.read_bytes().replace(b"value 2", b"valux 2"))
    # then diagnose reports it with exit code 1, although nothing runs
    found = run("record", "diagnose", "kept", "0", "1", "--data", str(data))
    assert found.exit_code == 1 and "DIFFERS" in found.stdout
    assert f"`siltstone file inspect {victim.relative_to(data / 'objects')}" in found.stdout
    assert run("record", "diagnose", "kept", "0", "0", "--data", str(data)).exit_code == 0


def test_the_objects_of_another_cluster_are_not_called_damaged(stack: Stack, stopped: Path) -> None:
    metadata_url = json.loads((stack.data / "run.json").read_text())["metadata_url"]
    other = (stopped / "objects").as_uri()
    found = run("fsck", "--metadata", metadata_url, "--object-store", other)
    assert found.exit_code == 1
    assert "error: the object store belongs to cluster" in found.stderr and "FILE-1" not in found.output


def test_a_directory_of_objects_that_is_mistyped_is_told_by_who_reads_it_and_not_made(
    stack: Stack, tmp_path: Path
) -> None:
    metadata_url = json.loads((stack.data / "run.json").read_text())["metadata_url"]
    nope = ("--metadata", metadata_url, "--object-store", (tmp_path / "nope").as_uri())
    for words in (("fsck",), ("record", "diagnose", "written", "0", "0")):
        found = run(*words, *nope)
        assert found.exit_code == 1
        assert found.stderr.startswith(f"error: there is no directory {tmp_path / 'nope'}\nremedy: "), found.output
    assert list(tmp_path.iterdir()) == []


def test_doctor_finds_a_dev_stack_fit(stack: Stack) -> None:
    checks = {check["name"]: check for check in run_json("doctor", "--data", str(stack.data))}
    assert checks["store conditional create"]["verdict"] == "ok"
    assert (
        checks["postgres version"]["verdict"] == checks["schema"]["verdict"] == checks["cluster id"]["verdict"] == "ok"
    )
    assert [name for name, check in checks.items() if check["verdict"] != "ok"] == ["postgres failover"]
    shown = run_ok("doctor", "--data", str(stack.data))
    assert "remedy: " in shown and shown.strip().endswith("0 fail")


def test_doctor_of_a_directory_judges_the_listeners_of_a_config_and_says_what_it_leaves_out(
    stack: Stack, tmp_path: Path
) -> None:
    # without a file the listeners are those of `siltstone dev`
    left_out = "not checked: listeners, ACLs and certificates"
    directory = "--data", str(stack.data)
    assert left_out in run_ok("doctor", *directory)
    as_json = run("doctor", *directory, "--json")
    assert left_out in as_json.stderr and json.loads(as_json.stdout)
    # with a file they are those of the agents that go by it
    config = tmp_path / "agent.toml"
    config.write_text('insecure = true\n[listener.open]\naddress = "0.0.0.0:9092"\nadvertised = "a:9092"\n')
    checks = {check["name"]: check for check in run_json("doctor", *directory, "--config", str(config))}
    assert checks["listener open"]["verdict"] == checks["acl.mode"]["verdict"] == "warn"
    assert left_out not in run_ok("doctor", *directory, "--config", str(config))


def test_doctor_reports_what_it_cannot_reach_and_goes_on(unused_tcp_port: int, tmp_path: Path) -> None:
    (tmp_path / "objects").mkdir()
    found = run(
        *("doctor", "--metadata", f"postgresql://x:secret@127.0.0.1:{unused_tcp_port}/y"),
        *("--object-store", (tmp_path / "objects").as_uri()),
    )
    assert found.exit_code == 1
    assert "fail postgres" in found.stdout and "ok   store conditional create" in found.stdout
    assert "secret" not in found.output


def test_a_directory_without_a_system_is_refused(tmp_path: Path) -> None:
    refused = run("fsck", "--data", str(tmp_path))
    assert refused.exit_code == 1
    assert "contains no metadata" in refused.stderr and "remedy: " in refused.stderr


def test_nothing_named_is_told_with_how_to_name_it(tmp_path: Path) -> None:
    nothing = run("files", "list")
    assert nothing.exit_code == 1
    assert "no option or setting says where the metadata is" in nothing.stderr and "--data" in nothing.stderr
    both = run("fsck", "--data", str(tmp_path), "--metadata", "postgresql://x@y/z")
    assert both.exit_code == 2


def test_an_unknown_setting_is_refused_by_name(stack: Stack) -> None:
    refused = run("files", "list", "--set", "metadata.ulr=postgresql://x@y/z")
    assert refused.exit_code == 1
    assert "metadata.ulr" in refused.stderr and "metadata.url" in refused.stderr
