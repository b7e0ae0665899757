"""Apache Kafka beside us, and Kafka's own load tools: only where a JVM and Kafka's jars are available.

The jars are found in KAFKA_JARS (a folder of jars) or KAFKA_HOME (a distribution, jars in `libs`), and java on the PATH
or in JAVA_HOME. `Broker` is a single KRaft node on loopback with an empty log directory and the heap and collector of
Kafka's start script. Its settings are the defaults, except those that one node needs: listeners, directories, and one
replica for its internal topics. `producer_perf` and `consumer_perf` run Kafka's own tools against any broker and read
their output. The tools call 1,048,576 bytes a MB; here their rates are in MB of 1,000,000, like all others.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.measures.usage import Usage, usage
from bench.servers.s3_server import free_port, stop
from bench.servers.started import Started

START_S = 60.0
TOOL_TIMEOUT_S = 300.0
STOP_S = 30.0
MIB = 1 << 20
BROKER_JVM = ("-Xmx1G", "-Xms1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
TOOL_JVM = ("-Xmx512M", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
CLUSTER_ID = "c2lsdHN0b25lLWJlbmNoMA"

SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={directory}/logs
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
"""


@dataclass(frozen=True, slots=True)
class Jars:
    java: str
    folder: Path

    @property
    def version(self) -> str:
        """The version of kafka-clients; "" if its file name does not tell."""
        names = (re.fullmatch(r"kafka-clients-([0-9.]+)\.jar", path.name) for path in self.folder.iterdir())
        return next((name[1] for name in names if name), "")

    def command(self, main: str, arguments: Sequence[str], jvm: Sequence[str] = TOOL_JVM) -> list[str]:
        return [self.java, *jvm, "-cp", f"{self.folder}/*", main, *arguments]


def find_jars(environ: Mapping[str, str] | None = None) -> Jars | None:
    """The jars; None if Kafka cannot run. Raises RuntimeError when a variable names a folder without Kafka's jars."""
    environ = os.environ if environ is None else environ
    java_home = environ.get("JAVA_HOME", "")
    java = f"{java_home}/bin/java" if java_home else shutil.which("java", path=environ.get("PATH"))
    named = environ.get("KAFKA_JARS") or (f"{environ['KAFKA_HOME']}/libs" if environ.get("KAFKA_HOME") else "")
    if not named or java is None:
        return None
    folder = Path(named).absolute()
    if not any(folder.glob("kafka-clients-*.jar")):
        raise RuntimeError(f"there is no kafka-clients jar in {folder}: see bench/README.md")
    return Jars(java, folder)


# ---- the broker


class Broker(Started):
    """Started by `with`; stopped by its pid and its directory removed at the end."""

    def __init__(self, jars: Jars) -> None:
        super().__init__()
        self._jars = jars
        self._process: subprocess.Popen[bytes] | None = None
        self.bootstrap = ""

    def read(self) -> Usage:
        assert self._process is not None
        return usage(self._process.pid)

    def _start(self) -> None:
        directory = Path(tempfile.mkdtemp(prefix="siltstone-bench-kafka-"))
        self._stack.callback(shutil.rmtree, directory, ignore_errors=True)
        port, controller_port = free_port(), free_port()
        settings = directory / "server.properties"
        settings.write_text(SETTINGS.format(port=port, controller_port=controller_port, directory=directory))
        log_path = directory / "output.log"
        log = self._stack.enter_context(log_path.open("wb"))
        format_arguments = ["format", "--cluster-id", CLUSTER_ID, "--config", str(settings)]
        command = self._jars.command("kafka.tools.StorageTool", format_arguments)
        subprocess.run(command, stdout=log, stderr=log, cwd=directory, check=True, timeout=START_S)
        self._process = subprocess.Popen(
            self._jars.command("kafka.Kafka", [str(settings)], BROKER_JVM),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=directory,
            start_new_session=True,
        )
        self._stack.callback(stop, self._process, wait_s=STOP_S)
        self._await(self._process, port, log_path)
        self.bootstrap = f"127.0.0.1:{port}"

    def _await(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and process.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return
            time.sleep(0.05)
        raise RuntimeError(f"Kafka does not listen; its output ends with:\n{log.read_text()[-3000:]}")


# ---- the tools


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerPerf:
    records: int
    mb_per_s: float
    avg_ms: float
    p50_ms: float
    p99_ms: float
    cpu_s: float = 0.0
    """The tool's CPU, its start included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerPerf:
    records: int
    mb_per_s: float
    """While fetching, without the wait for the group."""
    cpu_s: float = 0.0


_PRODUCED = re.compile(
    r"^(?P<records>\d+) records sent, [\d.]+ records/sec \((?P<rate>[\d.]+) MB/sec\), (?P<avg>[\d.]+) ms avg latency, "
    r"[\d.]+ ms max latency, (?P<p50>\d+) ms 50th, \d+ ms 95th, (?P<p99>\d+) ms 99th, \d+ ms 99\.9th\.$",
    re.MULTILINE,
)


def parse_producer_perf(output: str) -> ProducerPerf:
    """The tool's last line, its summary. Raises ValueError if there is no summary: then not all records were sent."""
    found = _PRODUCED.search(output)
    if found is None:
        raise ValueError(f"no summary in what the producer tool printed:\n{output[-2000:]}")
    return ProducerPerf(
        records=int(found["records"]),
        mb_per_s=float(found["rate"]) * MIB / 1e6,
        avg_ms=float(found["avg"]),
        p50_ms=float(found["p50"]),
        p99_ms=float(found["p99"]),
    )


def parse_consumer_perf(output: str) -> ConsumerPerf:
    """The row under the tool's header. Raises ValueError if there is no row."""
    header: list[str] = []
    for line in output.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if "data.consumed.in.nMsg" in cells:
            header = cells
        elif header and len(cells) == len(header):
            row = dict(zip(header, cells, strict=True))
            return ConsumerPerf(
                records=int(row["data.consumed.in.nMsg"]), mb_per_s=float(row["fetch.MB.sec"]) * MIB / 1e6
            )
    raise ValueError(f"no row in what the consumer tool printed:\n{output[-2000:]}")


def producer_perf(
    jars: Jars,
    *,
    bootstrap: str,
    topic: str,
    records: int,
    record_bytes: int,
    properties: Mapping[str, str],
    records_per_s: int = -1,
) -> ProducerPerf:
    """-1 a second: as fast as possible.

    Raises ValueError, subprocess.TimeoutExpired, RuntimeError for refused records.
    """
    given = {"bootstrap.servers": bootstrap, "acks": "all", **properties}
    arguments = ["--topic", topic, "--num-records", str(records), "--record-size", str(record_bytes)]
    arguments += [
        "--throughput",
        str(records_per_s),
        "--producer-props",
        *(f"{name}={value}" for name, value in given.items()),
    ]
    output, cpu_s = _run_tool(jars.command("org.apache.kafka.tools.ProducerPerformance", arguments))
    found = parse_producer_perf(output)
    if found.records != records or "Exception" in output:
        raise RuntimeError(f"{found.records} of {records} records were sent:\n{output[-2000:]}")
    return ProducerPerf(
        records=found.records,
        mb_per_s=found.mb_per_s,
        avg_ms=found.avg_ms,
        p50_ms=found.p50_ms,
        p99_ms=found.p99_ms,
        cpu_s=cpu_s,
    )


def consumer_perf(jars: Jars, *, bootstrap: str, topic: str, records: int) -> ConsumerPerf:
    """Read from the beginning, as a group: the broker must have group coordinators."""
    arguments = ["--bootstrap-server", bootstrap, "--topic", topic, "--messages", str(records), "--timeout", "30000"]
    output, cpu_s = _run_tool(jars.command("org.apache.kafka.tools.ConsumerPerformance", arguments))
    found = parse_consumer_perf(output)
    if found.records < records:
        raise RuntimeError(f"{found.records} of {records} records were read:\n{output[-2000:]}")
    return ConsumerPerf(records=found.records, mb_per_s=found.mb_per_s, cpu_s=cpu_s)


def _run_tool(command: Sequence[str]) -> tuple[str, float]:
    """The tool's output, and its CPU seconds."""
    # Children count when they are waited for, and no other child ends meanwhile.
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=TOOL_TIMEOUT_S
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    output = done.stdout.decode(errors="replace")
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}:\n{output[-2000:]}")
    return output, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
