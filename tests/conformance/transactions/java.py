"""Programs of the JVM that run on their own until they end or are killed."""

from __future__ import annotations

import shutil
import subprocess
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


class JavaProcess:
    """A main class or a source file. It keeps one temporary folder over all its starts, and one file of output."""

    def __init__(self, jars: Jars, folder: Path, main: str, *words: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._command = jars.command(main, words, (*JVM, f"-Djava.io.tmpdir={folder}"))
        self._log = folder / "output.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.failures = 0
        """How often it ended with an error by itself."""

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    @property
    def exit_code(self) -> int | None:
        assert self._process is not None
        return self._process.poll()

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(END_S)

    def kill_and_start(self) -> None:
        self.kill()
        self.start()

    def stop(self) -> None:
        """End it as an operator does, by SIGTERM."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait(END_S)

    def stop_and_start(self) -> None:
        self.stop()
        self.start()

    def tended(self) -> str:
        """Start it again if it has ended with an error, as whatever supervises programs does."""
        if self.exit_code:
            self.failures += 1
            self.start()
        return f"exit code {self.exit_code}: {self._log.read_text(errors='replace')[-TOLD:]}"
