"""The kinds of clients, and where their libraries are found. Each has stock settings, but what its program's head says.

Kafka's own client is there in two versions: the jars in KAFKA_JARS (or KAFKA_HOME), and an older one, 3.9, in
KAFKA_JARS_3. The programs in Go are built once for each run.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from bench.servers.kafka import Jars, find_jars

PROGRAMS = Path(__file__).parent / "programs"
BUILD_S_MAX = 300
CLIENT_JVM = ("-Xmx128M", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Small, because a run has a dozen of them. The client's settings are not touched."""
NO_JDK = "a JDK is not on the PATH"


@dataclass(frozen=True, slots=True)
class SteadyClient(ABC):
    name: str
    """Without blanks; it is part of the values that a client writes."""
    settings: Mapping[str, str] = field(default_factory=dict[str, str])
    """Beyond stock."""
    always_there: bool = False
    """Whether it is one of the project's own development dependencies."""

    def absent(self) -> str:
        """The reason why the client is missing on this machine; "" if it is present."""
        return ""

    @abstractmethod
    def command(self) -> Sequence[str]:
        """The program; a job's arguments follow."""


@dataclass(frozen=True, slots=True)
class PythonClient(SteadyClient):
    module: str = ""

    def command(self) -> Sequence[str]:
        return [sys.executable, "-m", f"bench.steady.programs.{self.module}"]


@dataclass(frozen=True, slots=True)
class JavaClient(SteadyClient):
    variable: str = "KAFKA_JARS"

    def absent(self) -> str:
        if self._jars() is None:
            return f"Kafka's jars ({self.variable}) and a JVM are not at hand"
        return "" if shutil.which("javac") else NO_JDK

    def command(self) -> Sequence[str]:
        jars = self._jars()
        assert jars is not None
        return [jars.java, *CLIENT_JVM, "-cp", f"{_compiled(jars.folder)}:{jars.folder}/*", "Steady"]

    def _jars(self) -> Jars | None:
        if self.variable == "KAFKA_JARS":
            return find_jars()
        return find_jars({**os.environ, "KAFKA_HOME": "", "KAFKA_JARS": os.environ.get(self.variable, "")})


@dataclass(frozen=True, slots=True)
class GoClient(SteadyClient):
    """Built where the modules are present or can be downloaded. This takes long."""

    def absent(self) -> str:
        return "" if shutil.which("go") else "Go is not on the PATH"

    def command(self) -> Sequence[str]:
        return [str(_built(self.name))]


@cache
def _compiled(jars: Path) -> Path:
    """The folder of classes. They are compiled once, because a JVM that compiles for itself needs much more memory."""
    target = _temporary_folder()
    command = ["javac", "-cp", f"{jars}/*", "-d", str(target), str(PROGRAMS / "Steady.java")]
    subprocess.run(command, check=True, timeout=BUILD_S_MAX, stdout=sys.stderr)
    return target


@cache
def _built(name: str) -> Path:
    target = _temporary_folder() / name
    subprocess.run(
        ["go", "build", "-o", str(target), f"./{name}"],
        cwd=PROGRAMS / "go",
        check=True,
        timeout=BUILD_S_MAX,
        stdout=sys.stderr,
        env={**os.environ, "GOFLAGS": "-mod=readonly"},
    )
    return target


def _temporary_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="siltstone-steady-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


LIBRDKAFKA = PythonClient("librdkafka", always_there=True, module="librdkafka")
AIOKAFKA = PythonClient("aiokafka", always_there=True, module="aiokafka_client")
KAFKA_PYTHON = PythonClient("kafka-python", always_there=True, module="kafka_python")
JAVA_4 = JavaClient("java-4.1")
JAVA_3 = JavaClient("java-3.9", variable="KAFKA_JARS_3")
FRANZ_GO = GoClient("franz-go")
SARAMA = GoClient("sarama")

CLIENTS: Sequence[SteadyClient] = (LIBRDKAFKA, AIOKAFKA, KAFKA_PYTHON, JAVA_4, JAVA_3, FRANZ_GO, SARAMA)
JAVA_3_REBOOTSTRAP = JavaClient(
    "java-3.9-rebootstrap", {"metadata.recovery.strategy": "rebootstrap"}, variable="KAFKA_JARS_3"
)
"""Kafka's client of 3.9 with the setting that is the default in 4.x."""


def at_hand(clients: Sequence[SteadyClient] = CLIENTS) -> list[SteadyClient]:
    return [client for client in clients if not client.absent()]
