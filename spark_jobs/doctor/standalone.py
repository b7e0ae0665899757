"""A standalone cluster on this machine for as long as a block runs: a master and two workers, on three addresses.

Spark takes each address for a host. The daemons listen on loopback alone, take no jobs by REST, and die with this
process. Whoever submits needs the secret, if there is one: without it, every user of this machine could run programs
as this one.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.clock import Clock, SystemClock
from runtime.errors import UnavailableError
from spark_jobs.environment import LOOPBACK
from spark_jobs.submitters.supervise import die_with

HOSTS = ("127.0.0.2", "127.0.0.3")
SMALL_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=64m"
AUTH_SECRET = "_SPARK_AUTH_SECRET"  # noqa: S105 - the name of Spark's variable, which no list of processes shows
START_TIMEOUT_S = 90
END_TIMEOUT_S = 20
_POLL_S = 0.1
_SPARK_DAEMONS = ("SPARK_DAEMON_", "SPARK_MASTER_", "SPARK_WORKER_", "SPARK_PUBLIC_DNS")
"""How the variables begin by which a cluster of this machine's own may be configured."""


class ClusterStartError(UnavailableError):
    """The daemons did not start. None of them is left."""


@dataclass(frozen=True, slots=True)
class Standalone:
    """The daemons while they run."""

    master_url: str
    state_url: str
    pids: dict[str, int]
    """By name: "master", and the workers by their addresses."""
    folder: Path

    def state(self) -> dict[str, Any]:
        """The master's own report: "workers", "activeapps", "completedapps" and more."""
        with urllib.request.urlopen(self.state_url, timeout=10) as answer:  # noqa: S310 - our own http://127.0.0.1
            return json.load(answer)

    def log(self) -> str:
        """The logs of the daemons and of the executors of all applications."""
        return "\n".join(f"== {path}\n{path.read_text(errors='replace')}" for path in sorted(self._logs()))

    def _logs(self) -> Iterator[Path]:
        yield from self.folder.glob("*.log")
        yield from self.folder.glob("work-*/*/*/std*")


@contextmanager
def standalone(
    environ: Mapping[str, str], folder: Path, *, worker_memory_mib: int, secret: str = "", clock: Clock | None = None
) -> Generator[Standalone]:
    """A running cluster. `environ` names SPARK_HOME and JAVA_HOME; logs and work lie in `folder`.

    Raises ClusterStartError.
    """
    clock = clock or SystemClock()
    kept = {name: value for name, value in environ.items() if not name.startswith(_SPARK_DAEMONS)}
    kept |= {"SPARK_DAEMON_MEMORY": "192m", "SPARK_DAEMON_JAVA_OPTS": SMALL_JVM}
    lines = ["spark.master.rest.enabled=false", "spark.ui.killEnabled=false"]
    if secret:
        kept[AUTH_SECRET] = secret
        lines.append("spark.authenticate=true")
    properties = folder / "daemons.conf"  # in place of spark-defaults.conf, which is for programs
    properties.write_text("\n".join(lines) + "\n", encoding="utf-8")
    running: dict[str, subprocess.Popen[bytes]] = {}
    port, web_port = _free_port(), _free_port()
    url = f"spark://{LOOPBACK}:{port}"
    cluster = Standalone(url, f"http://{LOOPBACK}:{web_port}/json/", {}, folder)

    def start(host: str, kind: str, more: Mapping[str, str], *arguments: str) -> None:
        name = host if kind == "worker" else kind
        words = ["--host", host, "--properties-file", str(properties), *arguments]
        running[name] = _daemon(kind, words, {**kept, "SPARK_LOCAL_IP": host, **more}, folder / f"{kind}-{host}.log")
        cluster.pids[name] = running[name].pid

    try:
        start(LOOPBACK, "master", {}, "--port", str(port), "--webui-port", str(web_port))
        _until(lambda: "workers" in _asked(cluster), running, cluster, clock)
        for host in HOSTS:
            room = ["--cores", "1", "--memory", f"{worker_memory_mib}m", "--webui-port", "0", url]
            start(host, "worker", {"SPARK_WORKER_DIR": str(folder / f"work-{host}")}, *room)
        _until(lambda: [each["state"] for each in _asked(cluster)["workers"]] == ["ALIVE"] * 2, running, cluster, clock)
        yield cluster
    finally:
        _end(running)


def _daemon(kind: str, arguments: list[str], environ: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    """Start a daemon with `spark-class`, which becomes the JVM: its process id is the JVM's."""
    program = Path(environ["SPARK_HOME"]) / "bin" / "spark-class"
    libc = ctypes.CDLL(None, use_errno=True)
    ours = os.getpid()
    with log.open("wb") as output:
        return subprocess.Popen(  # noqa: S603 - Spark's own program
            [program, f"org.apache.spark.deploy.{kind}.{kind.capitalize()}", *arguments],
            env=environ,
            cwd=log.parent,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C is for us, who end them in their order
            preexec_fn=lambda: die_with(libc, ours),
        )


def _end(running: dict[str, subprocess.Popen[bytes]]) -> None:
    for process in reversed(running.values()):  # workers first, because they end their executors
        process.terminate()
    for process in running.values():
        try:
            process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_port() -> int:
    """A port that no process listens on now."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return probe.getsockname()[1]


def _asked(cluster: Standalone) -> dict[str, Any]:
    """The master's state; empty while it does not answer."""
    try:
        return cluster.state()
    except (TimeoutError, urllib.error.URLError, ConnectionError):
        return {}


def _until(
    ready: Callable[[], bool], running: dict[str, subprocess.Popen[bytes]], cluster: Standalone, clock: Clock
) -> None:
    deadline_ms = clock.monotonic_ms() + START_TIMEOUT_S * 1000
    while not ready():
        ended = [name for name, process in running.items() if process.poll() is not None]
        if ended or clock.monotonic_ms() > deadline_ms:
            how = f"{', '.join(ended)} ended" if ended else f"not ready after {START_TIMEOUT_S} s"
            raise ClusterStartError(f"the cluster does not start: {how}\n{cluster.log()[-4000:]}")
        time.sleep(_POLL_S)
