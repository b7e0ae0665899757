"""Programs that run on their own until they are killed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.servers.kafka import Jars, find_jars

JVM = ("-Xmx256M", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
END_S = 120
TOLD = 3_000
"""Characters of a program's output in a message."""


def jars_at_hand(needed: str) -> Jars:
    """Kafka's jars with the one whose name begins so. Skips the test where they, or a JDK, are missing."""
    jars = find_jars()
    if jars is None or not any(jars.folder.glob(f"{needed}-*.jar")):
        pytest.skip(f"Kafka's jars (KAFKA_JARS or KAFKA_HOME) with {needed}, and a JVM, are not at hand")
    if shutil.which("javac") is None:
        pytest.skip("a JDK is not on the PATH")
    return jars


def java(jars: Jars, main: str, *words: str) -> Sequence[str]:
    """The command of a main class or a source file."""
    return jars.command(main, words, JVM)


class Running:
    """It keeps one temporary folder over all its starts, and one file of output."""

    def __init__(self, folder: Path, command: Sequence[str]) -> None:
        folder.mkdir(parents=True)
        self._command = [command[0], f"-Djava.io.tmpdir={folder}", *command[1:]] if "-cp" in command else command
        self._log = folder / "output.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.failures = 0
        """How often it ended with an error by itself."""

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    @property
    def exit_code(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(END_S)

    def kill_and_start(self) -> None:
        self.kill()
        self.start()

    def stop_and_start(self) -> None:
        """End it as an operator does, by SIGTERM."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait(END_S)
        self.start()

    def tended(self) -> str:
        """Start it again if it has ended with an error, as whatever supervises programs does."""
        if self.exit_code:
            self.failures += 1
            self.start()
        return f"exit code {self.exit_code}, {self.failures} failures: {self.told()}"

    def told(self) -> str:
        return self._log.read_text(errors="replace")[-TOLD:]


@contextmanager
def started(programs: Sequence[Running]) -> Iterator[None]:
    try:
        for each in programs:
            each.start()
        yield
    finally:
        for each in programs:
            each.kill()
