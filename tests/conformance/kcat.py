"""kcat: librdkafka on the command line."""

from __future__ import annotations

import os
import re
import selectors
import shutil
import subprocess
import time
from collections.abc import Sequence
from typing import ClassVar

from tests.conformance.contract import TIMEOUT_S, Client, Consumer, Item, Reading, Sent
from tests.conformance.security.logins import Login, of_librdkafka

FORMAT = "%p %o %k|%s|%h\\n"


class KcatConsumer(Consumer):
    def __init__(self, bootstrap: str, reading: Reading, login: Login) -> None:
        command = ["kcat", "-b", bootstrap, *_options(login), "-u", "-f", FORMAT]
        command += ["-X", f"auto.offset.reset={'error' if reading.reset == 'none' else reading.reset}"]
        command += ["-X", "topic.metadata.refresh.interval.ms=1000"]
        if reading.fetch_bytes is not None:
            command += ["-X", f"fetch.message.max.bytes={reading.fetch_bytes}", "-X", "queued.min.messages=1"]
        if reading.group is None:
            command += ["-C", "-t", reading.topic, "-p", "0", "-o", str(reading.start or 0)]
        else:
            command += ["-X", f"session.timeout.ms={reading.session_ms}"]
            command += ["-X", f"heartbeat.interval.ms={reading.heartbeat_ms}"]
            command += ["-X", "partition.assignment.strategy=range"]
            if reading.instance is not None:
                command += ["-X", f"group.instance.id={reading.instance}"]
            command += ["-G", reading.group, reading.topic]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self._selector = selectors.DefaultSelector()
        self._rests = {}
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)
            self._selector.register(stream, selectors.EVENT_READ)
            self._rests[stream] = b""
        self._partitions: set[int] = set()
        self._heard = ""

    def poll(self, seconds: float) -> Sequence[Item]:
        items: list[Item] = []
        for key, _ in self._selector.select(seconds):
            data = os.read(key.fd, 1 << 16)
            if not data:
                self._selector.unregister(key.fileobj)
                self._check_end()
                continue
            *lines, self._rests[key.fileobj] = (self._rests[key.fileobj] + data).split(b"\n")
            for line in lines:
                if key.fileobj is self._process.stdout:
                    items.append(_item(line))
                else:
                    self._hear(line.decode())
        return items

    def _check_end(self) -> None:
        """Its stderr may end before the process is gone."""
        if not self._selector.get_map() and self._process.wait(TIMEOUT_S):
            raise RuntimeError(f"kcat has ended:\n{self._heard}")

    def _hear(self, line: str) -> None:
        self._heard += line + "\n"
        if re.search("Authentication failure|SSL alert|SSL handshake failed|authorization failed", line):
            raise RuntimeError(line)
        if "rebalanced" not in line:
            return
        found = {int(each) for each in re.findall(r"\[(\d+)\]", line)}
        self._partitions = found if "assigned" in line else set()

    def commit(self) -> None:
        """kcat commits by itself when it closes."""

    def partitions(self) -> set[int]:
        return self._partitions

    def close(self) -> None:
        self._process.terminate()
        try:
            # Read its output, because kcat would wait for a reader for ever.
            self._process.communicate(timeout=TIMEOUT_S)
        finally:
            self._process.kill()
            self._selector.close()


def _item(line: bytes) -> Item:
    place, value, headers = line.split(b"|")
    partition, offset, key = place.split(b" ", 2)
    pairs = (each.partition(b"=") for each in headers.split(b",") if each)
    return Item(int(partition), int(offset), key, value, tuple((name.decode(), text) for name, _, text in pairs))


class Kcat(Client):
    name = "kcat"
    lacks: ClassVar = {
        "records: 900 KB": "its input is lines",
        "consume: auto.offset.reset=none": "it ends with librdkafka's error, as confluent-kafka shows it",
        "consume: auto.offset.reset=earliest": "it cannot be paused, so the log does not pass it",
        "consume: auto.offset.reset=latest": "it cannot be paused, so the log does not pass it",
        "topics": "it has no administration",
        "groups: described": "it has no administration",
        "group deletion": "it has no administration",
        "groups: commit and resume": "it commits when it pleases",
    }

    def absent(self) -> str:
        return "" if shutil.which("kcat") else "kcat is not on the PATH (a Debian package)"

    def unable_to(self, login: Login) -> str:
        said, (_, library) = _said("-V"), _versions()
        if login.mechanism.startswith("SCRAM") and tuple(map(int, library.split("."))) < (2, 6, 1):
            # the last message has a wrong nonce, and Kafka 4 refuses it too
            return "librdkafka before 2.6.1 does SCRAM wrong"
        if login.mechanism == "OAUTHBEARER" and not re.search(r"features=\S*\boidc\b", said):
            return "its librdkafka is built without OIDC, so it can fetch no token"
        if login.mechanism == "OAUTHBEARER" and "https.ca.location" not in _said("-X", "list"):
            return "its librdkafka cannot be told of an issuer's authority (https.ca.location)"
        return ""

    def version(self) -> str:
        program, library = _versions()
        return f"{program} (librdkafka {library})"

    @property
    def records(self) -> Sequence[Sent]:
        return [Sent(b"key %d" % number, b"value %d" % number, (("h", b"1"),)) for number in range(60)]

    def write(
        self,
        bootstrap: str,
        topic: str,
        records: Sequence[Sent],
        *,
        codec: str = "none",
        client_id: str = "conformance",
    ) -> Sequence[int]:
        headers = [word for name, value in records[0].headers for word in ("-H", f"{name}={value.decode()}")]
        lines = b"".join(b"%b|%b\n" % (each.key, each.value) for each in records)
        command = ["kcat", "-P", "-b", bootstrap, "-t", topic, "-p", "0", "-K", "|", "-z", codec, *headers]
        command += ["-X", "enable.idempotence=true", "-X", f"client.id={client_id}", *_options(self.login)]
        try:
            done = subprocess.run(command, input=lines, capture_output=True, timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired as late:
            raise RuntimeError(f"kcat goes on trying: {(late.stderr or b'').decode()}") from late
        if done.returncode:
            raise RuntimeError(done.stderr.decode())
        return []

    def consumer(self, bootstrap: str, reading: Reading) -> Consumer:
        return KcatConsumer(bootstrap, reading, self.login)

    def ends(self, bootstrap: str, topic: str) -> tuple[int, int]:
        return _query(bootstrap, topic, -2), _query(bootstrap, topic, -1)

    def offset_at(self, bootstrap: str, topic: str, timestamp_ms: int) -> int:
        return _query(bootstrap, topic, timestamp_ms)


def _said(*words: str) -> str:
    return subprocess.run(["kcat", *words], check=True, capture_output=True, text=True).stdout


def _versions() -> tuple[str, str]:
    """The versions of kcat and of librdkafka."""
    found = re.search(r"Version (\S+) .*librdkafka (\d+\.\d+\.\d+)", _said("-V"))
    assert found is not None
    return found[1], found[2]


def _options(login: Login) -> Sequence[str]:
    return [word for name, value in of_librdkafka(login).items() for word in ("-X", f"{name}={value}")]


def _query(bootstrap: str, topic: str, timestamp_ms: int) -> int:
    command = ["kcat", "-Q", "-b", bootstrap, "-t", f"{topic}:0:{timestamp_ms}"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=TIMEOUT_S)
    found = re.search(r"offset (\d+)", done.stdout)
    assert found is not None, (time.time(), done.stdout, done.stderr)
    return int(found[1])
