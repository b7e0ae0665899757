"""`siltstone dev` as a user runs it: the command, its output, its signals, and the state that it leaves behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from runtime.errors import BadInputError, SiltstoneError
from runtime.settings.addresses import AddressInUseError
from runtime.settings.table import Settings
from siltstone.cli import main
from siltstone.embedded.attach import NothingHereError, attach
from siltstone.embedded.children import agent_settings, child_settings, with_metrics_ports
from siltstone.embedded.postgres import postgres_processes
from siltstone.embedded.run_file import RunFile, RunFileError, read_run_file, started_ticks, write_run_file
from siltstone.embedded.stack import StackSize, run_stack
from siltstone.kafka.client import KafkaClient
from tests.fixtures.waiting import wait_until
from wire.records import NewRecord, build_batch

ROOT = Path(__file__).resolve().parents[3]
ENVIRON = {
    **{name: value for name, value in os.environ.items() if not name.startswith("SILTSTONE_")},
    "PYTHONPATH": str(ROOT),
    "SILTSTONE_PRODUCE_LINGER_MS": "20",
}


def descendants(pid: int) -> set[int]:
    """All descendants of `pid`, by /proc."""
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


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


class Dev:
    """A running `siltstone dev`."""

    def __init__(self, data: Path, *options: str, environ: dict[str, str] | None = None) -> None:
        self.data = data
        self._started = set[int]()
        self._errors_path = data.with_name(f"{data.name}.err")
        self._errors = self._errors_path.open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "siltstone", "dev", "--data", str(data), *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**ENVIRON, **(environ or {})},
            start_new_session=True,  # its own session, so that a test can signal its process group, as a terminal does
        )

    @property
    def errors(self) -> str:
        return self._errors_path.read_text()

    def bootstrap(self) -> str:
        """Waits until it is ready."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("bootstrap: "), self.errors
        metrics = self.process.stdout.readline()
        assert metrics == f"metrics: {','.join(self.run_file()['metrics_urls'])}\n"
        self._started = descendants(self.process.pid)
        return line.removeprefix("bootstrap: ").strip()

    def run_file(self) -> dict[str, Any]:
        return json.loads((self.data / "run.json").read_text())

    def stop(self, signal_number: int = signal.SIGTERM) -> int:
        self.process.send_signal(signal_number)
        return self.process.wait(60)

    def close(self) -> None:
        left = self._started | descendants(self.process.pid)
        self.process.kill()
        for pid in alive(left):
            with contextlib.suppress(ProcessLookupError):  # the children of Postgres end with it
                os.kill(pid, signal.SIGKILL)
        self.process.communicate()
        self._errors.close()


@contextlib.contextmanager
def dev(data: Path, *options: str, compactors: int = 0, environ: dict[str, str] | None = None) -> Iterator[Dev]:
    """Without a compactor unless one is asked for, because its start takes most of the time."""
    options = (*options, "--compactors", str(compactors))
    if "--listen" not in options:
        options = (*options, "--listen", "127.0.0.1:0")
    running = Dev(data, *options, environ=environ)
    try:
        yield running
    finally:
        running.close()


def write(bootstrap: str, value: bytes) -> int:
    """Append one record to partition 0 of topic t. Returns its offset."""

    async def go() -> int:
        client = await KafkaClient.connect(bootstrap)
        try:
            if "t" not in {each.name for each in (await client.metadata()).topics}:
                await client.create_topic("t", partitions=1)
            return await client.produce("t", 0, build_batch([NewRecord(1, None, value)]))
        finally:
            await client.close()

    return asyncio.run(go())


def zones(bootstrap: str) -> dict[str, str | None]:
    """The zone of each agent, by its address, from Metadata."""

    async def go() -> dict[str, str | None]:
        client = await KafkaClient.connect(bootstrap)
        try:
            return {f"{each.host}:{each.port}": each.rack for each in (await client.metadata([])).brokers}
        finally:
            await client.close()

    return asyncio.run(go())


def read(bootstrap: str) -> bytes:
    """The first records. Waits for the topic, which another agent may have created a moment ago."""

    async def go() -> bytes:
        client = await KafkaClient.connect(bootstrap)
        try:
            async with asyncio.timeout(20):
                while "t" not in {each.name for each in (await client.metadata()).topics}:
                    await asyncio.sleep(0.02)
            return bytes((await client.fetch("t", 0, 0, max_wait_ms=5000)).records)
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


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return f"127.0.0.1:{probe.getsockname()[1]}"


def children_in(role: str, pids: set[int]) -> list[int]:
    """The processes that run `siltstone agent` or `siltstone compactor`."""
    commands = {pid: Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") for pid in pids}
    return [pid for pid, words in commands.items() if role.encode() in words and b"--lifeline" in words]


def agent_of(pids: set[int]) -> int:
    return children_in("agent", pids)[0]


def test_it_serves_tells_where_it_is_and_leaves_nothing_running_after_sigterm(tmp_path: Path) -> None:
    data = tmp_path / "silt"
    (tmp_path / "aside").mkdir()
    with dev(tmp_path / "aside" / ".." / "silt") as running:
        bootstrap = running.bootstrap()
        # what run.json says
        run = running.run_file()
        assert (run["pid"], run["bootstrap"]) == (running.process.pid, bootstrap)
        assert stat.S_IMODE((data / "run.json").stat().st_mode) == 0o600
        # Kafka and HTTP
        assert write(bootstrap, b"first") == 0
        assert b"first" in read(bootstrap)
        assert "siltstone_produce_batches_total" in get(run["metrics_url"])[1]
        ready_url = run["metrics_url"].replace("/metrics", "/readyz")
        assert get(ready_url) == (200, '{"ready": true, "reasons": []}\n')
        assert get(ready_url.replace("readyz", "healthz"))[0] == 200
        # other commands attach
        with attach(data) as attached:
            assert (attached.bootstrap, attached.metadata_url) == (bootstrap, run["metadata_url"])
            assert attached.object_store_url == (data / "objects").as_uri()
        # a second `siltstone dev` on the directory is refused, and the error names the first
        with dev(data) as second:
            assert second.process.wait(60) == 1
            assert f"error: {data} is in use by process {running.process.pid}\n" in second.errors
        assert running.run_file() == run
        # the end
        below = descendants(running.process.pid)
        assert len(below) > 3
        assert children_in("compactor", below) == [], "none was asked for"
        assert running.stop() == 0, running.errors
        assert alive(below) == set()
        assert not (data / "run.json").exists()
    # other commands start Postgres themselves
    with attach(data) as attached:
        assert attached.bootstrap == ""
        assert attached.object_store_url == (data / "objects").as_uri()
        assert postgres_processes(data / "postgres" / "data")
    assert postgres_processes(data / "postgres" / "data") == []


@pytest.mark.timeout(300)
def test_data_outlives_sigint_a_postgres_that_dies_and_kill_9_and_the_next_start_stops_the_orphaned_postgres(
    tmp_path: Path,
) -> None:
    data = tmp_path / "silt"
    with dev(data) as running:
        assert write(running.bootstrap(), b"before the interrupt") == 0
        below = descendants(running.process.pid)
        assert running.stop(signal.SIGINT) == 0, running.errors
        assert alive(below) == set()
    # a Postgres that dies ends all at once
    with dev(data) as running:
        assert write(running.bootstrap(), b"before Postgres dies") == 1
        below = descendants(running.process.pid)
        for pid in postgres_processes(data / "postgres" / "data"):
            os.kill(pid, signal.SIGKILL)
        assert running.process.wait(20) == 1
        assert "Postgres ended by itself" in running.errors
        assert alive(below) == set()
    address = free_address()
    with dev(data, "--listen", address) as killed:
        assert write(killed.bootstrap(), b"before the kill") == 2
        below = descendants(killed.process.pid)
        orphans = set(postgres_processes(data / "postgres" / "data"))
        agent = agent_of(below)
        os.kill(agent, signal.SIGSTOP)  # the agent has not seen the end of its lifeline yet and still has the port
        killed.process.kill()
        killed.process.wait()
        assert alive(below) == below
        assert (data / "run.json").exists()
        assert read_run_file(data) is None
        with dev(data, "--listen", address) as running:
            wait_until(lambda: (data / "lock").read_text().strip() == str(running.process.pid))
            assert alive(orphans), "Postgres stays while agents may have to commit"
            os.kill(agent, signal.SIGCONT)
            assert running.bootstrap() == address
            assert alive(below) == set()
            assert write(address, b"after the kill") == 3
            found = read(address)
            assert all(b"before " + word in found for word in (b"the interrupt", b"Postgres dies", b"the kill"))


def test_several_agents_share_a_given_postgres_and_one_that_dies_ends_all(
    tmp_path: Path, bare_postgres_url: str
) -> None:
    options = ("--agents", "2", "--zones", "a,b")
    with dev(tmp_path / "silt", *options, environ={"SILTSTONE_METADATA_URL": bare_postgres_url}) as running:
        first, second = running.bootstrap().split(",")
        assert first != second
        wait_until(lambda: zones(first) == zones(second) == {first: "a", second: "b"})
        assert len(running.run_file()["metrics_urls"]) == 2
        write(first, b"through the first")
        assert b"through the first" in read(second)
        assert running.run_file()["metadata_url"] == bare_postgres_url
        assert not (tmp_path / "silt" / "postgres").exists()
        below = descendants(running.process.pid)
        victim = agent_of(below)
        addresses = (first, second)
        os.kill(victim, signal.SIGKILL)
        assert running.process.wait(60) == 1
        said = [f"(process {victim}, {each}) ended with signal SIGKILL" for each in addresses]
        assert any(line in running.errors for line in said), running.errors
        assert alive(below) == set()
        assert not (tmp_path / "silt" / "run.json").exists()


def test_a_signal_during_the_start_ends_the_start(tmp_path: Path) -> None:
    with dev(tmp_path / "silt") as running:
        wait_until(lambda: (tmp_path / "silt" / "lock").exists())
        assert running.stop() == 0, running.errors
        assert postgres_processes(tmp_path / "silt" / "postgres" / "data") == []
        assert not (tmp_path / "silt" / "run.json").exists()


def test_ctrl_c_while_the_database_is_made_lets_it_be_made_and_ends_quietly(tmp_path: Path) -> None:
    def initdb_runs() -> bool:
        return any(name_of(pid) == "initdb" for pid in descendants(running.process.pid))

    with dev(tmp_path / "silt") as running:
        wait_until(initdb_runs)
        os.killpg(running.process.pid, signal.SIGINT)  # a terminal signals the whole process group
        assert running.process.wait(60) == 0, running.errors
        assert "error" not in running.errors.lower(), running.errors
        assert "initdb" not in running.errors, running.errors
        assert postgres_processes(tmp_path / "silt" / "postgres" / "data") == []
        assert list((tmp_path / "silt" / "postgres").glob("data.new-*")) == []


def test_a_second_signal_kills_the_agent_and_says_why_and_which(tmp_path: Path, postgres_url: str) -> None:
    with dev(tmp_path / "silt", environ={"SILTSTONE_METADATA_URL": postgres_url}) as running:
        bootstrap = running.bootstrap()
        agent = agent_of(descendants(running.process.pid))
        os.kill(agent, signal.SIGSTOP)  # it will not drain
        for number in (signal.SIGTERM, signal.SIGINT):
            running.process.send_signal(number)
        assert running.process.wait(60) == 0, running.errors
        [line] = [line for line in running.errors.splitlines() if "agent killed" in line]
        assert f"agent 1 (process {agent}, {bootstrap})" in line and "why='told not to wait'" in line
        assert "[error" not in line
        assert alive({agent}) == set()


@pytest.mark.parametrize(
    ("places", "said"),
    [
        ({"object_store_url": "foo://x"}, "object.store.url has the scheme 'foo'"),
        ({"object_store_url": "file://relative"}, "object.store.url names the host"),
        ({"metadata_url": "foo://x"}, "scheme 'foo'"),
        ({"metadata_url": "postgresql://u:pa/ss@h/db"}, "metadata.url cannot be read"),
    ],
)
async def test_a_bad_url_is_told_before_anything_is_made(tmp_path: Path, places: dict[str, str], said: str) -> None:
    settings = Settings(listen="127.0.0.1:0", **places)  # type: ignore[arg-type]
    with pytest.raises(SiltstoneError, match=said) as refused:
        await run_stack(settings, data=tmp_path / "silt", size=StackSize(agents=1), on_ready=print)
    assert refused.value.remedy and "u:pa" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_an_agent_with_memory_beside_a_store_that_lasts_writes_nothing_there(tmp_path: Path) -> None:
    places = ["--metadata", "memory://", "--object-store", (tmp_path / "objects").as_uri()]
    command = [sys.executable, "-m", "siltstone", "agent", "--listen", "127.0.0.1:0", *places]
    outcome = subprocess.run(command, capture_output=True, text=True, env=ENVIRON, timeout=60)
    assert outcome.returncode == 1
    assert "error: one of object.store.url and metadata.url is memory://, and the other is not" in outcome.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", ["--metadata", "--object-store"])
def test_one_memory_url_makes_both_and_one_agent_inside(tmp_path: Path, option: str) -> None:
    with dev(tmp_path / "silt", option, "memory://") as running:
        bootstrap = running.bootstrap()
        write(bootstrap, b"soon forgotten")
        assert b"soon forgotten" in read(bootstrap)
        assert descendants(running.process.pid) == set()
        assert {path.name for path in running.data.iterdir()} == {"lock", "run.json"}
        with pytest.raises(NothingHereError, match="own memory"), attach(running.data):
            pass
        assert running.stop() == 0, running.errors


def test_objects_that_are_not_this_postgres_s_are_refused(tmp_path: Path) -> None:
    (tmp_path / "objects" / "l0").mkdir(parents=True)
    (tmp_path / "objects" / "l0" / "somebody-elses").write_bytes(b"x")
    with dev(tmp_path / "silt", "--object-store", (tmp_path / "objects").as_uri()) as running:
        assert running.process.wait(60) == 1
        assert "error: the object store holds objects but no cluster.json" in running.errors
        assert "ended with exit code 1 before it was ready; everything was stopped" in running.errors
        assert postgres_processes(tmp_path / "silt" / "postgres" / "data") == []


def test_an_agent_alone_prints_where_it_is_and_drains_on_sigterm(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "siltstone", "agent", "--listen", "127.0.0.1:0", "--metadata", "memory://"]
    with subprocess.Popen(
        [*command, "--object-store", "memory://", "--set", "log.format=json"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRON,
    ) as process:
        assert process.stdout is not None
        bootstrap = process.stdout.readline().removeprefix("bootstrap: ").strip()
        assert write(bootstrap, b"x") == 0
        process.terminate()
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert [json.loads(line)["event"] for line in errors.splitlines()] == ["agent ready", "agent stops"]


async def test_a_taken_port_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(AddressInUseError, match=f"{address} is taken by another process .*set listen to another"):
            await run_stack(Settings(listen=address), data=tmp_path / "silt", size=StackSize(agents=1), on_ready=print)
    assert {path.name for path in (tmp_path / "silt").iterdir()} == {"lock"}


async def test_several_agents_cannot_share_one_process_s_memory(tmp_path: Path) -> None:
    memory = Settings(listen="127.0.0.1:0", metadata_url="memory://", object_store_url="memory://")
    with pytest.raises(BadInputError, match="2 agents cannot share it"):
        await run_stack(memory, data=tmp_path / "silt", size=StackSize(agents=2), on_ready=print)


def test_zones_are_given_to_agents_in_turn_and_a_zone_has_a_name(tmp_path: Path) -> None:
    settings = Settings(listen="127.0.0.1:0", agent_zone="own")
    assert [one.agent_zone for one in agent_settings(settings, 3, ["a", "b"])] == ["a", "b", "a"]
    assert [one.agent_zone for one in agent_settings(settings, 2)] == ["own", "own"]
    refused = CliRunner().invoke(main, ["dev", "--data", str(tmp_path / "silt"), "--zones", "a,,b"])
    assert refused.exit_code == 2 and "a zone has an empty name" in refused.output


def test_agents_listen_on_ports_that_count_up_and_port_0_stays_any() -> None:
    settings = Settings(listen="127.0.0.1:9092", metrics_listen="127.0.0.1:0")
    each = agent_settings(settings, 3)
    assert [one.listen for one in each] == ["127.0.0.1:9092", "127.0.0.1:9093", "127.0.0.1:9094"]
    assert {one.metrics_listen for one in each} == {"127.0.0.1:0"}
    with pytest.raises(BadInputError, match="3 agents need the ports from 65534 up"):
        agent_settings(Settings(listen="127.0.0.1:65534"), 3)


def test_metrics_ports_stay_the_same_from_run_to_run_where_the_port_of_clients_does() -> None:
    def addresses(settings: Settings, taken: int = 0) -> Sequence[str]:
        each = with_metrics_ports(child_settings(settings, 2, 1), 2, is_free=lambda _, port: port != taken)
        return [one.metrics_listen for one in each]

    assert addresses(Settings()) == ["127.0.0.1:10092", "127.0.0.1:10093", "127.0.0.1:11092"]
    assert addresses(Settings(), taken=10092) == ["127.0.0.1:0", "127.0.0.1:10093", "127.0.0.1:11092"]
    high = Settings(listen="127.0.0.1:64535")
    assert addresses(high) == ["127.0.0.1:65535", "127.0.0.1:0", "127.0.0.1:0"]  # ports end at 65535
    # a named port, no metrics, any port for clients: as they were
    assert addresses(Settings(metrics_listen="127.0.0.1:80")) == ["127.0.0.1:80", "127.0.0.1:81", "127.0.0.1:82"]
    assert addresses(Settings(metrics_listen="")) == ["", "", ""]
    assert set(addresses(Settings(listen="127.0.0.1:0"))) == {"127.0.0.1:0"}


def test_attaching_to_a_directory_without_a_system_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NothingHereError, match="contains no metadata"), attach(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_run_file_of_a_pid_that_was_given_away_again_counts_as_none(tmp_path: Path) -> None:
    ticks = started_ticks(os.getpid())
    assert ticks is not None
    run = RunFile(
        pid=os.getpid(),
        started_ticks=ticks,
        bootstrap="127.0.0.1:1",
        metadata_url="memory://",
        object_store_url="memory://",
        metrics_url="",
        metrics_urls=(),
    )
    write_run_file(tmp_path, run)
    assert read_run_file(tmp_path) == run
    write_run_file(tmp_path, replace(run, started_ticks=ticks - 1))
    assert read_run_file(tmp_path) is None
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(RunFileError, match="was not written by `siltstone dev`"):
        read_run_file(tmp_path)
