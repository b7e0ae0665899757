"""Clients in other languages: a small program of ours around each one reads a line of JSON and answers with another.

Bytes are base64. A request is {"do": "write" | "open" | "poll" | "commit" | "close" | an act of `Admin`, ...}. An
answer with "error" is raised here. One program serves all scenarios, because a JVM takes a second to start:
each request but those of an open consumer says where to connect, and how to come in.
"""

from __future__ import annotations

import atexit
import base64
import json
import os
import re
import shutil
import subprocess
import tempfile
import threading
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from bench.servers.kafka import find_jars
from tests.conformance.contract import Admin, Client, Consumer, Item, NoOffsetError, Reading, Sent
from tests.conformance.security.logins import of_java

FOLDER = Path(__file__).parent / "programs"
BUILD_S_MAX = 300
Place: TypeAlias = Mapping[str, object]
"""The members of a request that say where to connect and how to come in."""


class Program:
    """The client's process. Calls wait for one another."""

    def __init__(self, command: Sequence[str]) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - as long as the process
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True
        )
        self._lock = threading.Lock()
        self._last_id = 0
        atexit.register(self.end)

    def next_id(self) -> int:
        with self._lock:
            self._last_id += 1
            return self._last_id

    def ask(self, do: str, **words: object) -> Mapping[str, Any]:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        with self._lock:
            stdin.write(json.dumps({"do": do, **words}) + "\n")
            stdin.flush()
            line = stdout.readline()
        if not line:
            self._errors.seek(0)
            raise RuntimeError(f"the program has ended:\n{self._errors.read()[-3000:]}")
        answer = json.loads(line)
        if answer.get("error"):
            raise (NoOffsetError if answer.get("no_offset") else RuntimeError)(answer["error"])
        return answer

    def end(self) -> None:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        stdin.close()
        stdout.close()
        self._errors.close()


class ProgramConsumer(Consumer):
    def __init__(self, program: Program, reading: Reading, place: Place) -> None:
        self._program, self._id = program, program.next_id()
        self._partitions: set[int] = set()
        program.ask("open", id=self._id, **place, **asdict(reading))

    def poll(self, seconds: float) -> Sequence[Item]:
        answer = self._program.ask("poll", id=self._id, ms=int(seconds * 1000))
        self._partitions = set(answer["partitions"])
        return [
            Item(
                each["partition"],
                each["offset"],
                _bytes(each["key"]),
                _bytes(each["value"]),
                tuple((name, _bytes(value) or b"") for name, value in each["headers"] or ()),
            )
            for each in answer["items"] or ()
        ]

    def commit(self) -> None:
        self._program.ask("commit", id=self._id)

    def partitions(self) -> set[int]:
        return self._partitions

    def close(self) -> None:
        self._program.ask("close", id=self._id)


class ProgramAdmin(Admin):
    def __init__(self, program: Program, place: Place) -> None:
        self._ask = partial(program.ask, **place)

    def create(self, topic: str, partitions: int, configs: Mapping[str, str]) -> None:
        self._ask("create", topic=topic, partitions=partitions, configs=dict(configs))

    def count_partitions(self, topic: str) -> int:
        return self._ask("count", topic=topic)["count"]

    def config(self, topic: str, name: str) -> str | None:
        return self._ask("config", topic=topic, name=name)["value"]

    def set_config(self, topic: str, name: str, value: str) -> None:
        self._ask("set", topic=topic, name=name, value=value)

    def grow(self, topic: str, partitions: int) -> None:
        self._ask("grow", topic=topic, partitions=partitions)

    def delete(self, topic: str) -> None:
        self._ask("delete", topic=topic)

    def delete_records(self, topic: str, before: int) -> None:
        self._ask("delete_records", topic=topic, before=before)

    def groups(self) -> Mapping[str, str]:
        return self._ask("groups")["groups"]

    def group(self, group: str) -> tuple[str, int]:
        answer = self._ask("group", group=group)
        return answer["state"], answer["members"]

    def committed(self, group: str, topic: str) -> Mapping[int, int]:
        answer = self._ask("committed", group=group, topic=topic)
        return {int(partition): offset for partition, offset in answer["offsets"].items()}

    def delete_group(self, group: str) -> None:
        self._ask("delete_group", group=group)


class ProgramClient(Client):
    @abstractmethod
    def command(self) -> Sequence[str]: ...

    @abstractmethod
    def security(self) -> Mapping[str, str]:
        """The login in the program's words."""

    def program(self) -> Program:
        return _started(tuple(self.command()))

    def place(self, bootstrap: str) -> Place:
        return {"bootstrap": bootstrap, "security": self.security()}

    def write(
        self,
        bootstrap: str,
        topic: str,
        records: Sequence[Sent],
        *,
        codec: str = "none",
        client_id: str = "conformance",
    ) -> Sequence[int]:
        given = [
            {
                "key": _text(each.key),
                "value": _text(each.value),
                "headers": [[name, _text(value)] for name, value in each.headers],
                "timestamp_ms": each.timestamp_ms,
            }
            for each in records
        ]
        answer = self.program().ask(
            "write", **self.place(bootstrap), topic=topic, records=given, codec=codec, client_id=client_id
        )
        return answer["offsets"]

    def consumer(self, bootstrap: str, reading: Reading) -> Consumer:
        return ProgramConsumer(self.program(), reading, self.place(bootstrap))

    def ends(self, bootstrap: str, topic: str) -> tuple[int, int]:
        return self._offset(bootstrap, topic, -2), self._offset(bootstrap, topic, -1)

    def offset_at(self, bootstrap: str, topic: str, timestamp_ms: int) -> int:
        return self._offset(bootstrap, topic, timestamp_ms)

    def admin(self, bootstrap: str) -> Admin:
        return ProgramAdmin(self.program(), self.place(bootstrap))

    def _offset(self, bootstrap: str, topic: str, at: int) -> int:
        return self.program().ask("offset", **self.place(bootstrap), topic=topic, at=at)["offset"]


@cache
def _started(command: Sequence[str]) -> Program:
    return Program(command)


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


class Java(ProgramClient):
    name = "Java client"

    def absent(self) -> str:
        if find_jars() is None:
            return "Kafka's jars (KAFKA_JARS or KAFKA_HOME) and a JVM are not at hand"
        return "" if shutil.which("javac") else "a JDK is not on the PATH"

    def version(self) -> str:
        jars = find_jars()
        assert jars is not None
        return jars.version

    def security(self) -> Mapping[str, str]:
        return of_java(self.login)

    def write_for(self, bootstrap: str, topic: str, seconds: int) -> int:
        """Write 0, 1, 2, ... to partition 0 for so long. Returns how many records were stored."""
        return self.program().ask("write_for", **self.place(bootstrap), topic=topic, seconds=seconds)["count"]

    def command(self) -> Sequence[str]:
        jars = find_jars()
        assert jars is not None
        return [jars.java, "-Xmx256M", "-cp", f"{jars.folder}/*", str(FOLDER / "Conformance.java")]


class Go(ProgramClient):
    """Built where the modules are present or can be downloaded. This takes long."""

    is_heavy = True
    module: str

    def version(self) -> str:
        required = re.search(rf"{re.escape(self.module)} v(\S+)$", (FOLDER / "go" / "go.mod").read_text(), re.MULTILINE)
        assert required is not None
        return required[1]

    def absent(self) -> str:
        return "" if shutil.which("go") else "Go is not on the PATH"

    def security(self) -> Mapping[str, str]:
        return self.login.words

    def command(self) -> Sequence[str]:
        return [str(built(self.name))]


@cache
def built(name: str) -> Path:
    """The program of a folder of the module in Go."""
    target = Path(tempfile.mkdtemp(prefix="conformance-")) / name
    atexit.register(shutil.rmtree, target.parent, ignore_errors=True)
    subprocess.run(
        ["go", "build", "-o", str(target), f"./{name}"],
        cwd=FOLDER / "go",
        check=True,
        timeout=BUILD_S_MAX,
        env={**os.environ, "GOFLAGS": "-mod=readonly"},
    )
    return target


class FranzGo(Go):
    name = "franz-go"
    module = "github.com/twmb/franz-go"
    lacks: ClassVar = {
        "consume: auto.offset.reset=latest": "a consumer that was passed goes on at the log's start, by its own rule",
        "consume: a topic made anew": "it reports UNKNOWN_TOPIC_ID and stops reading the topic, by its own rule",
    }


class Sarama(Go):
    name = "sarama"
    module = "github.com/IBM/sarama"
    lacks: ClassVar = {
        "consume: auto.offset.reset=earliest": "its consumer of a partition reports the error and ends",
        "consume: auto.offset.reset=latest": "its consumer of a partition reports the error and ends",
        "consume: a topic made anew": "its consumer of a partition reports the error and ends",
    }
