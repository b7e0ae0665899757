"""One row's stack, on an empty data directory: Postgres as in production, an object store, agents by the real CLI.

    with Stack(Store.LOCAL, agents=2, zones=("a", "b")) as stack:
        before = stack.read()
        ...
        used = stack.read() - before

Everything listens on loopback with any port, is stopped by its pid and removed at the end. Agents hang on a pipe of
this process: when it is killed, they end. `read` gives the usage of agents, Postgres and the S3 server so far, the
sum of the agents' counters and Postgres's WAL; `-` gives the difference of two readings.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import MappingProxyType

from prometheus_client.parser import text_string_to_metric_families

from bench.measures.requests import Request, parse_requests
from bench.measures.usage import Usage, postgres_usage, usage, usage_of_all
from bench.servers.databases import wal_position
from bench.servers.s3_server import ROOT, Latency, S3Server, client_environment, server_name, stop
from bench.servers.started import Started
from metadata.migrations.migrate import migrate
from runtime.metrics.declared import PREFIX
from runtime.settings.loading import ENVIRONMENT_PREFIX, environment_name
from siltstone.embedded.postgres import EmbeddedPostgres

GIB = 1 << 30
LATENCY = Latency(put_ms=30, get_ms=10)
DRAIN_S = 45.0
STORED_BYTES = "produce_bytes_total"
FETCHED_BYTES = "fetch_bytes_total"


class Store(Enum):
    LOCAL = "local"
    S3 = "S3"
    S3_DISTANT = "S3 distant"
    """S3 behind `LATENCY`."""
    S3_COUNTED = "S3 counted"
    """S3 behind a proxy for each process, which counts its requests (`Stack.requests`)."""


def store_note() -> str:
    """The meaning of the stores' names in this run."""
    return (
        f"Stores: local = a directory, every object fsynced; S3 = {server_name()} on loopback; S3 distant = the same, "
        f"every PUT answered {LATENCY.put_ms:.0f} ms later and every GET {LATENCY.get_ms:.0f} ms later."
    )


@dataclass(frozen=True, slots=True)
class Counters:
    """Samples of the agents' counters, summed over agents."""

    values: Mapping[tuple[str, tuple[tuple[str, str], ...]], float]

    def sum(self, name: str, **labels: str) -> float:
        """Over all samples of a counter that have at least these labels; `name` without the prefix."""
        wanted = labels.items()
        return sum(
            value
            for (each, pairs), value in self.values.items()
            if each == PREFIX + name and wanted <= dict(pairs).items()
        )

    def __add__(self, other: Counters) -> Counters:
        keys = self.values.keys() | other.values.keys()
        return Counters({key: self.values.get(key, 0.0) + other.values.get(key, 0.0) for key in keys})

    def __sub__(self, earlier: Counters) -> Counters:
        return Counters({key: value - earlier.values.get(key, 0.0) for key, value in self.values.items()})


def parse_metrics(text: str) -> Counters:
    """All samples of the Prometheus text format."""
    values: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            values[sample.name, tuple(sorted(sample.labels.items()))] = sample.value
    return Counters(values)


@dataclass(frozen=True, slots=True)
class Reading:
    at_s: float
    agents: Usage
    postgres: Usage
    store: Usage
    """The S3 server's usage; none for the local store, whose work the agents do themselves."""
    counters: Counters
    wal_bytes: int = 0
    """WAL that Postgres has written; none for a broker without it."""

    def __sub__(self, earlier: Reading) -> Reading:
        return Reading(
            self.at_s - earlier.at_s,
            self.agents - earlier.agents,
            self.postgres - earlier.postgres,
            self.store - earlier.store,
            self.counters - earlier.counters,
            self.wal_bytes - earlier.wal_bytes,
        )


@dataclass(slots=True)
class RunningAgent:
    process: subprocess.Popen[bytes]
    bootstrap: str
    metrics_url: str


class Stack(Started):
    """A stack, started by `with`.

    Args:
        settings: dotted names of the agents' settings, above the defaults.
        second: the latency of a second store, on S3, for L0 files (`produce.store.url`); None = there is none.
        zones: the agents' zones, in their order; a client whose client.id says `zone=a` is sent to an agent of zone a.
    """

    def __init__(
        self,
        store: Store,
        *,
        agents: int = 1,
        zones: Sequence[str] = (),
        settings: Mapping[str, str] = MappingProxyType({}),
        second: Latency | None = None,
    ) -> None:
        super().__init__()
        self.store = store
        self._second = second
        self._agents_wanted = agents
        self._zones = zones
        self._settings = settings
        self._postgres: EmbeddedPostgres | None = None
        self._s3: S3Server | None = None
        self._store_url = ""
        self._agent_urls: list[str] = []
        self._lifeline = -1
        self.directory = Path()
        self.agents: list[RunningAgent] = []

    @property
    def bootstrap(self) -> str:
        return self.agents[0].bootstrap

    @property
    def metadata_url(self) -> str:
        assert self._postgres is not None
        return self._postgres.url

    @property
    def store_url(self) -> str:
        return self._store_url

    def read(self) -> Reading:
        assert self._postgres is not None
        counters = Counters({})
        for agent in self.agents:
            with urllib.request.urlopen(agent.metrics_url, timeout=10) as answer:
                counters += parse_metrics(answer.read().decode())
        return Reading(
            time.monotonic(),
            usage_of_all([agent.process.pid for agent in self.agents]),
            postgres_usage(self._postgres.pid),
            Usage() if self._s3 is None else usage(self._s3.pid),
            counters,
            _wal_bytes(self._postgres.url),
        )

    def complaints(self) -> list[str]:
        """The agents' warnings and errors; there are none in a good benchmark."""
        logs = (self._log(number) for number in range(self._agents_wanted))
        return [line for log in logs if log.exists() for line in log.read_text(errors="replace").splitlines()]

    def counted_url(self, process: str) -> str:
        """A URL of the store for one process, whose requests `requests` then tells. The store must be S3."""
        assert self._s3 is not None
        return self._s3.url(log=self._requests_log(process))

    def requests(self, process: str) -> list[Request]:
        """All requests so far of `agent-0`, `agent-1` ... or of the user of a counted URL."""
        log = self._requests_log(process)
        return parse_requests(log.read_text()) if log.exists() else []

    def object_sizes(self) -> dict[str, int]:
        """The bytes of each object in the bucket, by key. The store must be S3."""
        assert self._s3 is not None
        return self._s3.sizes()

    def restart_agents(self) -> None:
        """Start new processes, so that nothing is in any cache. Their addresses change."""
        self._stop_agents()
        self._start_agents()

    # ---- up and down

    def _start(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="siltstone-bench-"))
        self._stack.callback(shutil.rmtree, self.directory, ignore_errors=True)
        self.directory.chmod(0o711)  # Postgres may have to run as another user, who must reach its folder
        self._postgres = self._stack.enter_context(EmbeddedPostgres(self.directory / "postgres"))
        migrate(self._postgres.url)
        if self.store is Store.LOCAL:
            objects = self.directory / "objects"
            objects.mkdir()
            self._store_url = f"file://{objects}"
        else:
            self._s3 = self._stack.enter_context(S3Server(self.directory / "s3.log"))
            self._store_url = self._s3.url(LATENCY if self.store is Store.S3_DISTANT else None)
            if self.store is Store.S3_COUNTED:
                self._agent_urls = [self.counted_url(f"agent-{number}") for number in range(self._agents_wanted)]
        if self._second is not None:
            # A process of its own, as it is a store of its own.
            server = self._stack.enter_context(S3Server(self.directory / "s3-second.log"))
            self._settings = {**self._settings, "produce.store.url": server.url(self._second, prefix="second")}
        self._lifeline, our_end = os.pipe()
        self._stack.callback(os.close, self._lifeline)
        self._stack.callback(os.close, our_end)
        self._stack.callback(self._stop_agents)
        self._start_agents()

    def _start_agents(self) -> None:
        started = [self._spawn(number) for number in range(self._agents_wanted)]
        try:
            self.agents = [self._await(number, process) for number, process in enumerate(started)]
        except BaseException:
            for process in started:
                stop(process)
            raise

    def _spawn(self, number: int) -> subprocess.Popen[bytes]:
        settings = {
            "listen": "127.0.0.1:0",
            "metrics.listen": "127.0.0.1:0",
            "metadata.url": self.metadata_url,
            "object.store.url": self._agent_urls[number] if self._agent_urls else self._store_url,
            "log.level": "warning",
            "agent.zone": self._zones[number] if self._zones else "",
            **self._settings,
        }
        environment = {
            name: value for name, value in client_environment().items() if not name.startswith(ENVIRONMENT_PREFIX)
        }
        environment |= {environment_name(name): value for name, value in settings.items()}
        environment["PYTHONPATH"] = str(ROOT)
        with self._log(number).open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", "siltstone", "agent", "--lifeline", str(self._lifeline)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                pass_fds=(self._lifeline,),
                start_new_session=True,  # Ctrl-C reaches this process alone, which stops them in order
            )

    def _await(self, number: int, process: subprocess.Popen[bytes]) -> RunningAgent:
        assert process.stdout is not None
        said: dict[str, str] = {}
        while not {"bootstrap", "metrics"} <= said.keys():
            line = process.stdout.readline().decode()
            if not line:
                raise RuntimeError(f"agent {number} did not start; its log says:\n{self._log(number).read_text()}")
            name, _, value = line.strip().partition(": ")
            said[name] = value
        return RunningAgent(process, said["bootstrap"], said["metrics"])

    def _stop_agents(self) -> None:
        agents, self.agents = self.agents, []
        for agent in agents:
            # All at once, then wait for each: they drain side by side.
            agent.process.terminate()
        for agent in agents:
            stop(agent.process, wait_s=DRAIN_S)

    def _requests_log(self, process: str) -> Path:
        return self.directory / f"{process}.requests"

    def _log(self, number: int) -> Path:
        return self.directory / f"agent-{number}.log"


def _wal_bytes(url: str) -> int:
    """From a thread of its own, because a benchmark may read inside its event loop."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(wal_position(url))).result()


def per_gib(count: float, stored_bytes: float) -> float | None:
    return count / (stored_bytes / GIB) if stored_bytes else None
