"""`siltstone dev` as its users run it: a command, its output, its signals, and what it leaves behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from siltstone.client import KafkaClient
from siltstone.embedded.attach import NothingHereError, attach
from siltstone.embedded.postgres import postgres_processes
from siltstone.embedded.run_file import read_run_file
from wire.records import NewRecord, build_batch

ROOT = Path(__file__).resolve().parents[2]
ENVIRON = {
    **{name: value for name, value in os.environ.items() if not name.startswith("SILTSTONE_")},
    "PYTHONPATH": str(ROOT),
    "SILTSTONE_PRODUCE_LINGER_MS": "20",
}


def until(condition: Callable[[], bool], timeout_s: float = 40) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def descendants(pid: int) -> set[int]:
    """All processes below `pid`, by /proc."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
    found, new = set[int](), {pid}
    while new:
        new = {child for child, parent in parents.items() if parent in new} - found
        found |= new
    return found


def alive(pids: set[int]) -> set[int]:
    def state(pid: int) -> str:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return "X"

    return {pid for pid in pids if state(pid) not in "XZ"}


class Dev:
    """A running `siltstone dev`."""

    def __init__(self, data: Path, *options: str, environ: dict[str, str] | None = None) -> None:
        self.data = data
        self._errors_path = data.with_name(f"{data.name}.err")
        self._errors = self._errors_path.open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "siltstone", "dev", "--data", str(data), *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**ENVIRON, **(environ or {})},
        )

    @property
    def errors(self) -> str:
        return self._errors_path.read_text()

    def bootstrap(self) -> str:
        """Waits until it is ready."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("bootstrap: "), self.errors
        return line.removeprefix("bootstrap: ").strip()

    def run_file(self) -> dict[str, Any]:
        return json.loads((self.data / "run.json").read_text())

    def stop(self, signal_number: int = signal.SIGTERM) -> int:
        self.process.send_signal(signal_number)
        return self.process.wait(40)

    def close(self) -> None:
        left = descendants(self.process.pid) | set(postgres_processes(self.data / "postgres" / "data"))
        self.process.kill()
        for pid in alive(left):
            os.kill(pid, signal.SIGKILL)
        self.process.communicate()
        self._errors.close()


@contextmanager
def dev(data: Path, *options: str, environ: dict[str, str] | None = None) -> Iterator[Dev]:
    if "--listen" not in options:
        options = (*options, "--listen", "127.0.0.1:0")
    running = Dev(data, *options, environ=environ)
    try:
        yield running
    finally:
        running.close()


@pytest.fixture(scope="session")
def used_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that `dev` ran on before."""
    data = tmp_path_factory.mktemp("used") / "silt"
    with dev(data) as running:
        running.bootstrap()
        assert running.stop() == 0
    return data


def write(bootstrap: str, value: bytes, topic: str = "t") -> int:
    async def go() -> int:
        client = await KafkaClient.connect(bootstrap)
        try:
            if topic not in {each.name for each in (await client.metadata()).topics}:
                await client.create_topic(topic, partitions=1)
            return await client.produce(topic, 0, build_batch([NewRecord(1, None, value)]))
        finally:
            await client.close()

    return asyncio.run(go())


def read(bootstrap: str, topic: str = "t") -> bytes:
    async def go() -> bytes:
        client = await KafkaClient.connect(bootstrap)
        try:
            return bytes((await client.fetch(topic, 0, 0, max_wait_ms=5000)).records)
        finally:
            await client.close()

    return asyncio.run(go())


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_it_serves_tells_where_it_is_and_leaves_nothing_running_after_sigterm(tmp_path: Path) -> None:
    with dev(tmp_path / "silt") as running:
        bootstrap = running.bootstrap()
        # what run.json says
        run = running.run_file()
        assert (run["pid"], run["bootstrap"]) == (running.process.pid, bootstrap)
        assert stat.S_IMODE((running.data / "run.json").stat().st_mode) == 0o600
        assert run["object_store_url"] == (running.data / "objects").as_uri()
        # Kafka and HTTP
        assert write(bootstrap, b"first") == 0
        assert b"first" in read(bootstrap)
        assert "siltstone_produce_batches_total" in get(run["metrics_url"])[1]
        ready_url = run["metrics_url"].replace("/metrics", "/readyz")
        assert get(ready_url) == (200, '{"ready": true, "reasons": []}')
        assert get(ready_url.replace("readyz", "healthz"))[0] == 200
        # the end
        below = descendants(running.process.pid)
        assert len(below) > 3
        assert running.stop() == 0, running.errors
        assert alive(below) == set()
        assert not (running.data / "run.json").exists()


def test_data_is_kept_between_runs_and_sigint_stops_as_well(used_directory: Path) -> None:
    with dev(used_directory) as running:
        at = write(running.bootstrap(), b"kept over the night")
        below = descendants(running.process.pid)
        assert running.stop(signal.SIGINT) == 0, running.errors
        assert alive(below) == set()
    with dev(used_directory) as running:
        bootstrap = running.bootstrap()
        assert b"kept over the night" in read(bootstrap)
        assert write(bootstrap, b"more") == at + 1


def test_after_kill_9_agents_drain_and_the_next_start_stops_the_orphaned_postgres(used_directory: Path) -> None:
    with dev(used_directory) as killed:
        bootstrap = killed.bootstrap()
        at = write(bootstrap, b"before the kill")
        below = descendants(killed.process.pid)
        orphans = set(postgres_processes(used_directory / "postgres" / "data"))
        killed.process.kill()
        killed.process.wait()
        until(lambda: alive(below) == orphans)  # the agents saw the end of their lifeline, Postgres stays
        assert (used_directory / "run.json").exists()
        assert read_run_file(used_directory) is None
        with dev(used_directory) as running:
            bootstrap = running.bootstrap()
            assert alive(orphans) == set()
            assert write(bootstrap, b"after the kill") == at + 1


def test_several_agents_serve_the_same_log_on_ports_of_their_own(used_directory: Path) -> None:
    with dev(used_directory, "--agents", "2") as running:
        first, second = running.bootstrap().split(",")
        assert first != second
        assert len(running.run_file()["metrics_urls"]) == 2
        write(first, b"through the first", topic="shared")
        assert b"through the first" in read(second, topic="shared")


def test_an_agent_that_dies_ends_everything_with_a_clear_error(used_directory: Path) -> None:
    with dev(used_directory) as running:
        running.bootstrap()
        below = descendants(running.process.pid)
        agent = next(pid for pid in below if b"--lifeline" in Path(f"/proc/{pid}/cmdline").read_bytes())
        os.kill(agent, signal.SIGKILL)
        assert running.process.wait(40) == 1
        assert f"error: agent 1 (process {agent}, 127.0.0.1:0) ended by itself with signal SIGKILL" in running.errors
        assert alive(below) == set()
        assert not (used_directory / "run.json").exists()


def test_a_second_one_on_the_same_directory_is_refused_naming_the_first(used_directory: Path) -> None:
    with dev(used_directory) as running:
        running.bootstrap()
        with dev(used_directory) as second:
            assert second.process.wait(40) == 1
            assert f"error: {used_directory} is in use by process {running.process.pid}\n" in second.errors
        assert running.run_file()["pid"] == running.process.pid


def test_a_taken_port_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = "127.0.0.1:{}".format(taken.getsockname()[1])
        with dev(tmp_path / "silt", "--listen", address) as running:
            assert running.process.wait(40) == 1
            assert f"error: listen: the address {address} is taken by another process\nremedy: stop" in running.errors
            assert not (tmp_path / "silt" / "postgres").exists()


def test_a_signal_during_the_start_ends_the_start(tmp_path: Path) -> None:
    with dev(tmp_path / "silt") as running:
        until(lambda: (tmp_path / "silt" / "lock").exists())
        assert running.stop() == 0, running.errors
        assert postgres_processes(tmp_path / "silt" / "postgres" / "data") == []
        assert not (tmp_path / "silt" / "run.json").exists()


def test_memory_urls_run_one_agent_inside_and_refuse_more(tmp_path: Path) -> None:
    urls = ("--metadata", "memory://", "--object-store", "memory://")
    with dev(tmp_path / "silt", *urls) as running:
        bootstrap = running.bootstrap()
        write(bootstrap, b"soon forgotten")
        assert b"soon forgotten" in read(bootstrap)
        assert descendants(running.process.pid) == set()
        with pytest.raises(NothingHereError, match="own memory"), attach(running.data):
            pass
        assert running.stop() == 0, running.errors
    with dev(tmp_path / "silt", *urls, "--agents", "2") as running:
        assert running.process.wait(40) == 1
        assert "error: memory:// lives in one process, 2 agents cannot share it" in running.errors


def test_another_clusters_objects_are_refused(used_directory: Path, tmp_path: Path) -> None:
    objects = (used_directory / "objects").as_uri()
    with dev(tmp_path / "silt", "--object-store", objects) as running:
        assert running.process.wait(40) == 1
        assert "error: the object store is cluster" in running.errors
        assert "error: agent 1" in running.errors


def test_an_external_postgres_is_migrated_and_used(tmp_path: Path, postgres_server: str) -> None:
    with dev(tmp_path / "silt", environ={"SILTSTONE_METADATA_URL": postgres_server}) as running:
        assert write(running.bootstrap(), b"elsewhere") == 0
        assert not (tmp_path / "silt" / "postgres").exists()
        assert running.run_file()["metadata_url"] == postgres_server
        assert running.stop() == 0, running.errors


def test_an_unknown_setting_is_refused_by_name(tmp_path: Path) -> None:
    with dev(tmp_path / "silt", environ={"SILTSTONE_PRODUCE_LINGER": "1"}) as running:
        assert running.process.wait(40) == 1
        assert "'SILTSTONE_PRODUCE_LINGER'" in running.errors
        assert "remedy: did you mean 'SILTSTONE_PRODUCE_LINGER_MS'?" in running.errors


def test_other_commands_attach_to_a_running_one_or_start_its_postgres_for_themselves(used_directory: Path) -> None:
    with dev(used_directory) as running:
        bootstrap = running.bootstrap()
        with attach(used_directory) as attached:
            assert attached.bootstrap == bootstrap
            assert attached.metadata_url == running.run_file()["metadata_url"]
        assert running.stop() == 0
    with attach(used_directory) as attached:
        assert attached.bootstrap == ""
        assert attached.object_store_url == (used_directory / "objects").as_uri()
        assert postgres_processes(used_directory / "postgres" / "data")
    assert postgres_processes(used_directory / "postgres" / "data") == []


def test_attaching_to_a_directory_without_a_system_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NothingHereError, match="holds no metadata"), attach(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []
