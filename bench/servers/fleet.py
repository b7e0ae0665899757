"""A fleet of agents behind a load balancer, on one embedded Postgres and one directory; the whole fleet can be replaced
by agents with other addresses, as a new release of a service replaces its tasks.

    with Fleet(agents=3, settings={"drain.timeout.ms": "30000"}) as fleet:
        clients use fleet.bootstrap
        replaced = fleet.replace_all()

Postgres syncs nothing: no machine fails here. Agents are real processes with the real command line, on loopback, with
ports that no agent of the fleet had before. They hang on a pipe of this process: when it is killed, they end.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from bench.servers.load_balancer import LoadBalancer, Target
from bench.servers.s3_server import ROOT, client_environment, free_port, stop
from bench.servers.started import Started
from metadata.migrations.migrate import migrate_async
from runtime.settings.loading import ENVIRONMENT_PREFIX, environment_name
from siltstone.embedded.postgres import EmbeddedPostgres
from siltstone.kafka.client import connected

POSTGRES_SETTINGS = {"fsync": "off", "shared_buffers": "32MB"}
START_S = 60.0
MEET_S = 30.0
STOP_S = 300.0
"""A stopping agent may serve on for a while."""
LOOK_S = 0.1

T = TypeVar("T")


@dataclass(slots=True)
class FleetAgent:
    process: subprocess.Popen[bytes]
    log: Path
    port: int
    metrics_url: str = ""

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def target(self) -> Target:
        port = urlsplit(self.metrics_url).port
        assert port is not None
        return Target(self.port, port)


@dataclass(frozen=True, slots=True)
class Replaced:
    began_s: float
    """When the old agents got their SIGTERM, on the monotonic clock."""
    stop_s: Sequence[float]
    """How long each old agent took from its SIGTERM to its end."""
    exit_codes: Sequence[int]


class Fleet(Started):
    """Started by `with`.

    Args:
        settings: the agents', by their names.
        advertise: agents show the load balancer to clients as one more broker (`advertised.bootstrap`).
        silent: the address of an agent that has ended answers nothing, as that of a machine that is gone; otherwise
            it refuses connections, as that of a machine that is still there.
    """

    def __init__(
        self,
        *,
        agents: int = 3,
        settings: Mapping[str, str] | None = None,
        advertise: bool = False,
        silent: bool = False,
    ) -> None:
        super().__init__()
        self._agents_wanted = agents
        self._given = dict(settings or {})
        self._advertise = advertise
        self._silent = silent
        self._ports: set[int] = set()
        """The ports of all agents that there ever were: none is given again."""
        self._lifeline = -1
        self._metadata_url = self._store_url = ""
        self.balancer = LoadBalancer()
        self.directory = Path()
        self.agents: list[FleetAgent] = []
        self.ended: list[FleetAgent] = []
        """Agents of the past, for their logs."""

    @property
    def bootstrap(self) -> str:
        """The load balancer's address, the only one that clients are given."""
        return self.balancer.address

    def replace_all(self) -> Replaced:
        """Start as many new agents, wait until all are ready and known to each other, then stop all old ones at once,
        and wait for their ends."""
        old = self.agents
        new = self._start_agents()
        self.agents = [*old, *new]
        self._until_known()
        self.balancer.set_targets([agent.target for agent in self.agents])
        self._until_balanced(new)
        began_s = time.monotonic()
        for agent in old:
            agent.process.terminate()
        with ThreadPoolExecutor(len(old)) as pool:
            ends_s = list(pool.map(self._await_end, old))
        self.agents = new
        self.ended += old
        self.balancer.set_targets([agent.target for agent in new])
        codes = [agent.process.returncode for agent in old]
        return Replaced(began_s, [end_s - began_s for end_s in ends_s], codes)

    def complaints(self) -> list[str]:
        """The agents' warnings and errors."""
        logs = [agent.log for agent in (*self.ended, *self.agents)]
        return [line for log in logs for line in log.read_text(errors="replace").splitlines()]

    # ---- up and down

    def _await_end(self, agent: FleetAgent) -> float:
        """The time of its end; an agent that takes too long is killed."""
        try:
            agent.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            agent.process.kill()
            agent.process.wait()
        ended_s = time.monotonic()
        if agent.process.stdout is not None:
            agent.process.stdout.close()
        if self._silent:
            for each in silenced(agent.port):
                self._stack.callback(each.close)
        return ended_s

    def _start(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="siltstone-fleet-"))
        self._stack.callback(shutil.rmtree, self.directory, ignore_errors=True)
        self.directory.chmod(0o711)  # Postgres may have to run as another user, who must reach its folder
        server = EmbeddedPostgres(self.directory / "postgres", settings=POSTGRES_SETTINGS)
        postgres = self._stack.enter_context(server)
        self._metadata_url = postgres.url
        in_thread(migrate_async(self._metadata_url))
        objects = self.directory / "objects"
        objects.mkdir()
        self._store_url = objects.as_uri()
        self._stack.enter_context(self.balancer)
        self._lifeline, our_end = os.pipe()
        self._stack.callback(os.close, self._lifeline)
        self._stack.callback(os.close, our_end)
        self._stack.callback(self._stop_agents)
        self.agents = self._start_agents()
        self._until_known()
        self.balancer.set_targets([agent.target for agent in self.agents])
        self._until_balanced(self.agents)

    def _start_agents(self) -> list[FleetAgent]:
        started: list[FleetAgent] = []
        try:
            started += (self._spawn() for _ in range(self._agents_wanted))
            for agent in started:
                _await_ready(agent)
        except BaseException:
            for agent in started:
                stop(agent.process)
            raise
        return started

    def _spawn(self) -> FleetAgent:
        port = free_port()
        while port in self._ports:
            port = free_port()
        self._ports.add(port)
        settings = {"metrics.listen": "127.0.0.1:0", "log.level": "warning", **self._given}
        if self._advertise:
            settings["advertised.bootstrap"] = self.bootstrap
        command = [sys.executable, "-P", "-m", "siltstone", "agent", "--lifeline", str(self._lifeline)]
        command += ["--listen", f"127.0.0.1:{port}"]
        command += ["--object-store", self._store_url]
        command += [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        environment = {name: v for name, v in client_environment().items() if not name.startswith(ENVIRONMENT_PREFIX)}
        # Not in the command line, where others could read the password.
        environment[environment_name("metadata.url")] = self._metadata_url
        log = self.directory / f"agent-{len(self._ports)}.log"
        with log.open("ab") as errors:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**environment, "PYTHONPATH": str(ROOT)},
                pass_fds=(self._lifeline,),
                start_new_session=True,  # Ctrl-C reaches this process alone, which stops them in order
            )
        return FleetAgent(process, log, port)

    def _stop_agents(self) -> None:
        agents, self.agents = self.agents, []
        for agent in agents:
            # All at once, then wait for each: they drain side by side.
            agent.process.terminate()
        for agent in agents:
            stop(agent.process, wait_s=STOP_S)

    def _until_known(self) -> None:
        """Wait until every agent names every other one to its clients."""
        ports = {agent.port for agent in self.agents}
        _until(lambda: all(ports <= named(agent.address) for agent in self.agents), "the agents do not know each other")

    def _until_balanced(self, agents: Sequence[FleetAgent]) -> None:
        targets = {agent.target for agent in agents}
        _until(lambda: targets <= self.balancer.ready, "the load balancer does not find the agents ready")


def silenced(port: int) -> Sequence[socket.socket]:
    """Make a port on loopback as silent as a machine that is gone, until these are closed. The queue of a listener
    that nobody accepts from is filled: the kernel drops what comes then."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(0)
    filling = socket.socket()
    filling.setblocking(False)  # a client may have been quicker, and filled the queue
    filling.connect_ex(("127.0.0.1", port))
    return [listener, filling]


def named(address: str) -> set[int]:
    """The ports of the brokers that the agent at `address` names to a client."""

    async def ask() -> set[int]:
        async with connected(address) as client:
            return {broker.port for broker in (await client.metadata([])).brokers}

    return in_thread(ask())


def in_thread(work: Coroutine[Any, Any, T]) -> T:
    """Run it in a loop of its own, whether or not a loop is running here."""
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(lambda: asyncio.run(work)).result()


def _until(condition: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + MEET_S
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{otherwise} within {MEET_S:.0f} s")
        time.sleep(LOOK_S)


def _await_ready(agent: FleetAgent) -> None:
    """Read what it prints until it is ready."""
    assert agent.process.stdout is not None
    killer = threading.Timer(START_S, agent.process.kill)
    killer.start()
    try:
        for line in agent.process.stdout:
            name, _, value = line.decode().strip().partition(": ")
            if name == "metrics":
                agent.metrics_url = value
                return
    finally:
        killer.cancel()
    raise RuntimeError(f"the agent at {agent.address} did not start; its log says:\n{agent.log.read_text()}")
