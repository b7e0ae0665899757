"""Three nodes of Apache Kafka on loopback, each broker and controller, which can be restarted one after another.

Settings are Kafka's defaults, but what three nodes on one machine need: listeners, directories, a small heap. Internal
topics and new ones have three replicas, of which two must be in sync, as in production.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from bench.loads.clients import QUIET
from bench.servers.kafka import CLUSTER_ID, Jars
from bench.servers.s3_server import free_port, stop
from bench.servers.started import Started

NODES = 3
JVM = ("-Xmx512M", "-Xms512M", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
START_S = 120.0
STOP_S = 60.0
ASK_S = 5.0
LOOK_S = 0.2

SETTINGS = """\
process.roles=broker,controller
node.id={number}
controller.quorum.voters={voters}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={directory}/logs
default.replication.factor=3
min.insync.replicas=2
offsets.topic.replication.factor=3
transaction.state.log.replication.factor=3
transaction.state.log.min.isr=2
"""


@dataclass(slots=True)
class Node:
    number: int
    port: int
    controller_port: int
    directory: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        return self.directory / "output.log"

    @property
    def settings(self) -> Path:
        return self.directory / "server.properties"


class KafkaCluster(Started):
    """Started by `with`; stopped by its pids and its directory removed at the end."""

    def __init__(self, jars: Jars) -> None:
        super().__init__()
        self._jars = jars
        self.nodes: list[Node] = []

    @property
    def bootstrap(self) -> str:
        return ",".join(node.address for node in self.nodes)

    def restart(self, node: Node) -> float:
        """A controlled shutdown, a start at the same address, and the wait until the node is in sync with all
        partitions. Returns the seconds from the one to the other."""
        began_s = time.monotonic()
        assert node.process is not None
        stop(node.process, wait_s=STOP_S)
        self._run(node)
        self._until_in_sync()
        return time.monotonic() - began_s

    def _start(self) -> None:
        directory = Path(tempfile.mkdtemp(prefix="siltstone-bench-kafka-"))
        self._stack.callback(shutil.rmtree, directory, ignore_errors=True)
        self.nodes = [Node(number, free_port(), free_port(), directory / str(number)) for number in range(1, NODES + 1)]
        voters = ",".join(f"{node.number}@127.0.0.1:{node.controller_port}" for node in self.nodes)
        for node in self.nodes:
            node.directory.mkdir()
            node.settings.write_text(
                SETTINGS.format(
                    number=node.number,
                    voters=voters,
                    port=node.port,
                    controller_port=node.controller_port,
                    directory=node.directory,
                )
            )
            format_arguments = ["format", "--cluster-id", CLUSTER_ID, "--config", str(node.settings)]
            command = self._jars.command("kafka.tools.StorageTool", format_arguments)
            with node.log.open("wb") as log:
                subprocess.run(command, stdout=log, stderr=log, cwd=node.directory, check=True, timeout=START_S)
        self._stack.callback(self._stop)
        for node in self.nodes:
            self._run(node)
        self._until_in_sync()

    def _run(self, node: Node) -> None:
        with node.log.open("ab") as log:
            node.process = subprocess.Popen(
                self._jars.command("kafka.Kafka", [str(node.settings)], JVM),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=node.directory,
                start_new_session=True,
            )

    def _stop(self) -> None:
        processes = [node.process for node in self.nodes if node.process is not None]
        for process in processes:
            process.terminate()
        for process in processes:
            # The last ones find no quorum any more, and would wait for it for long.
            stop(process, wait_s=ASK_S)

    def _until_in_sync(self) -> None:
        """Wait until every node says that all are there and that all replicas are in sync."""
        for node in self.nodes:
            admin: Any = AdminClient({"bootstrap.servers": node.address, **QUIET})
            self._until(node, lambda admin=admin: _in_sync(admin))

    def _until(self, node: Node, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_S
        while not condition():
            ended = node.process is None or node.process.poll() is not None
            if ended or time.monotonic() > deadline:
                raise RuntimeError(f"Kafka's node {node.number} is not back; it says:\n{node.log.read_text()[-3000:]}")
            time.sleep(LOOK_S)


def _in_sync(admin: Any) -> bool:
    try:
        found = admin.list_topics(timeout=ASK_S)
    except KafkaException:
        return False
    partitions = [each for topic in found.topics.values() for each in topic.partitions.values()]
    return len(found.brokers) == NODES and all(len(each.isrs) == len(each.replicas) == NODES for each in partitions)
