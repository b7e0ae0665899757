"""The line protocol between a steady client's program and whoever started it; `bench/steady/running.py` is the other
end.

    python -m bench.steady.programs.PROGRAM BOOTSTRAP TOPIC PARTITIONS ROLE NAME [SETTING=VALUE ...]

A writer sends the record `NAME:%08d` about 20 times a second, round robin over the partitions, without waiting for
earlier ones. A reader assigns itself all partitions from offset 0. A member joins the group NAME, from the earliest
offset. Everything that is not said here is as the library comes.

Lines out: `ready`; `w PARTITION OFFSET VALUE` for an acknowledgement; `r PARTITION OFFSET VALUE` for a record read;
`b N` when a member is assigned N partitions in all; `e TEXT` for an error that the library shows its application, which
then goes on. Lines in: `sleep` (no call into the library any more, its own threads stay as they are), `wake`, `end`
(flush, close, exit 0). When stdin ends before that, the program ends at once.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WRITER, READER, MEMBER = "writer", "reader", "member"
PAUSE_S = 0.05
"""Between two records of a writer; also the pause after an error."""
POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Job:
    bootstrap: str
    topic: str
    partitions: int
    role: str
    name: str
    settings: Mapping[str, str]

    def arguments(self) -> list[str]:
        given = [f"{name}={value}" for name, value in self.settings.items()]
        return [self.bootstrap, self.topic, str(self.partitions), self.role, self.name, *given]

    def value(self, number: int) -> bytes:
        return f"{self.name}:{number:08d}".encode()

    def typed_settings(self) -> dict[str, Any]:
        """For libraries whose settings are values of Python: numbers, booleans, and texts for all others."""
        return {name: _typed(value) for name, value in self.settings.items()}


def job_of(arguments: Sequence[str]) -> Job:
    """Raises ValueError for arguments that are no job."""
    bootstrap, topic, partitions, role, name, *given = arguments
    if role not in (WRITER, READER, MEMBER):
        raise ValueError(f"there is no role {role!r}")
    pairs = [each.partition("=") for each in given]
    return Job(bootstrap, topic, int(partitions), role, name, {key: value for key, _, value in pairs})


def _typed(value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return value


# ---- lines out

_saying = threading.Lock()


def say(*words: object) -> None:
    """One line, from any thread."""
    with _saying:
        print(*words, flush=True)


def acknowledged(partition: int, offset: int, value: bytes) -> None:
    say("w", partition, offset, value.decode())


def found(partition: int, offset: int, value: bytes) -> None:
    say("r", partition, offset, value.decode())


def assigned(partitions: int) -> None:
    say("b", partitions)


def failed(error: object) -> None:
    say("e", " ".join(f"{type(error).__name__}: {error}".split()))


# ---- lines in


class Orders:
    """The orders read from stdin so far; a thread reads them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._sleeping = self._ended = False
        threading.Thread(target=self._read, name="orders", daemon=True).start()

    @property
    def sleeping(self) -> bool:
        return self._sleeping and not self._ended

    @property
    def ended(self) -> bool:
        return self._ended

    def go_on(self) -> bool:
        """Block as long as the client is to sleep. Returns False once it is to end."""
        with self._changed:
            self._changed.wait_for(lambda: not self.sleeping)
            return not self._ended

    def pause(self, seconds: float = PAUSE_S) -> None:
        """Wait, but not past the order to end."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended, seconds)

    def _read(self) -> None:
        for line in sys.stdin:
            with self._changed:
                order = line.strip()
                self._sleeping = order == "sleep" or (self._sleeping and order != "wake")
                self._ended = self._ended or order == "end"
                self._changed.notify_all()
        if not self._ended:
            os._exit(1)  # nobody is there any more who could say `end`


def due() -> float:
    """When a writer's next record is to be sent."""
    return time.monotonic() + PAUSE_S
