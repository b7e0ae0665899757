"""Apache Kafka that asks its clients who they are: one KRaft node on loopback, controller and broker in one JVM, with
StandardAuthorizer. At one listener clients prove themselves by PLAIN; at the other everybody is anonymous."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path

from bench.servers.kafka import CLUSTER_ID, Jars
from bench.servers.s3_server import stop
from tests.fixtures.s3 import free_port
from tests.fixtures.waiting import wait_until

START_S_MAX = 120
STOP_S_MAX = 30
JVM = ("-Xmx400M", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
LISTENERS = ("SASL", "ANONYMOUS", "CONTROLLER")
_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


class SecuredKafka:
    def __init__(self, jars: Jars, folder: Path, passwords: Mapping[str, str], super_user: str) -> None:
        self._jars, self._folder = jars, folder
        self._ports = {name: free_port() for name in LISTENERS}
        self._settings = folder / "server.properties"
        self._settings.write_text("".join(f"{name}={value}\n" for name, value in self._config(passwords, super_user)))
        self._log = folder / "output.log"
        self._process: subprocess.Popen[bytes] | None = None

    def address(self, listener: str) -> str:
        return f"127.0.0.1:{self._ports[listener]}"

    def start(self) -> None:
        with self._log.open("wb") as log:
            format_log_folder = ["format", "--cluster-id", CLUSTER_ID, "--config", str(self._settings)]
            command = self._jars.command("kafka.tools.StorageTool", format_log_folder, JVM)
            subprocess.run(command, stdout=log, stderr=log, cwd=self._folder, check=True, timeout=START_S_MAX)
            self._process = subprocess.Popen(
                self._jars.command("kafka.Kafka", [str(self._settings)], JVM),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
            )
        try:
            wait_until(self._listens, START_S_MAX)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        if self._process is not None:
            stop(self._process, wait_s=STOP_S_MAX)

    def _listens(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text()[-3_000:]
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._ports["ANONYMOUS"])) == 0

    def _config(self, passwords: Mapping[str, str], super_user: str) -> list[tuple[str, str]]:
        login = f'username="{super_user}" password="{passwords[super_user]}"'
        users = " ".join(f'user_{name}="{password}"' for name, password in passwords.items())
        client_listeners = [name for name in LISTENERS if name != "CONTROLLER"]
        return [
            ("process.roles", "broker,controller"),
            ("node.id", "1"),
            ("controller.quorum.voters", f"1@{self.address('CONTROLLER')}"),
            ("listeners", ",".join(f"{name}://{self.address(name)}" for name in LISTENERS)),
            ("advertised.listeners", ",".join(f"{name}://{self.address(name)}" for name in client_listeners)),
            (
                "listener.security.protocol.map",
                "SASL:SASL_PLAINTEXT,ANONYMOUS:PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
            ),
            ("controller.listener.names", "CONTROLLER"),
            ("inter.broker.listener.name", "SASL"),
            ("sasl.mechanism.inter.broker.protocol", "PLAIN"),
            ("sasl.mechanism.controller.protocol", "PLAIN"),
            *(
                (f"listener.name.{name}.{setting}", value)
                for name in ("sasl", "controller")
                for setting, value in (
                    ("sasl.enabled.mechanisms", "PLAIN"),
                    ("plain.sasl.jaas.config", f"{_PLAIN} required {login} {users};"),
                )
            ),
            ("authorizer.class.name", "org.apache.kafka.metadata.authorizer.StandardAuthorizer"),
            ("super.users", f"User:{super_user}"),
            ("log.dirs", str(self._folder / "logs")),
            ("offsets.topic.replication.factor", "1"),
            ("offsets.topic.num.partitions", "1"),
            ("transaction.state.log.replication.factor", "1"),
            ("transaction.state.log.min.isr", "1"),
            ("transaction.state.log.num.partitions", "1"),
            ("group.initial.rebalance.delay.ms", "0"),
            ("num.network.threads", "1"),
            ("num.io.threads", "2"),
        ]
