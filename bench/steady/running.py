"""A steady client's process: its orders go in, its lines are kept in an `Account`, with the time of each.

    with Steady(LIBRDKAFKA, job, log=folder / "librdkafka.log") as client:
        client.until(lambda: len(client.account.acknowledged) > 100, 30)
        client.end()

The process ends with this one, because its stdin does.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from bench.servers.s3_server import ROOT
from bench.steady.account import Account, NotALineError, Place
from bench.steady.clients import SteadyClient
from bench.steady.programs.protocol import Job

READY_S = 60.0
END_S = 30.0
LOOK_S = 0.05


class Steady:
    def __init__(self, client: SteadyClient, job: Job, *, log: Path) -> None:
        self.client, self.job = client, job
        self.account = Account()
        self._log = log
        settled = Job(job.bootstrap, job.topic, job.partitions, job.role, job.name, {**client.settings, **job.settings})
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [*client.command(), *settled.arguments()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=ROOT,
                start_new_session=True,  # Ctrl-C reaches the one that started it, who ends it in order
            )
        self._thread = threading.Thread(target=self._read, name=f"lines of {job.name}", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def name(self) -> str:
        return self.job.name

    @property
    def role(self) -> str:
        return self.job.role

    @property
    def acknowledged(self) -> dict[Place, str]:
        return self.account.acknowledged

    @property
    def found(self) -> dict[Place, str]:
        return self.account.found

    @property
    def rebalances(self) -> int:
        return len(self.account.rebalances)

    @property
    def errors(self) -> list[str]:
        """The errors that the client was shown."""
        return [text for _, text in self.account.errors]

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def said(self) -> str:
        """The end of what the process wrote to stderr."""
        return self._log.read_text(errors="replace")[-2000:]

    def longest_pause_s(self, since_s: float, until_s: float) -> float:
        return self.account.longest_pause_s(since_s, until_s)

    def until(self, condition: Callable[[], bool], timeout_s: float, what: str = "") -> None:
        """Wait. Raises RuntimeError when the time is over or the process has ended."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline or not self.is_running:
                ended = "" if self.is_running else f", the program ended with {self._process.poll()}"
                raise RuntimeError(
                    f"{self.name}: not {what or 'as awaited'} within {timeout_s:.0f} s{ended}; "
                    f"errors shown: {self.errors[-3:]}; stderr:\n{self.said()}"
                )
            time.sleep(LOOK_S)

    def until_ready(self) -> None:
        self.until(lambda: self.account.ready, READY_S, "ready")

    def until_steps(self, more: int, timeout_s: float) -> None:
        """Wait until the client has written or read this many records more."""
        wanted = len(self.account.steps) + more
        self.until(lambda: len(self.account.steps) >= wanted, timeout_s, f"{more} records further")

    # ---- orders

    def sleep(self) -> None:
        self._order("sleep")

    def wake(self) -> None:
        self._order("wake")

    def begin_end(self) -> None:
        self._order("end")

    def end(self, timeout_s: float = END_S) -> bool:
        """End in order. Returns whether it did, with exit code 0; a client that does not is killed."""
        if self.is_running:
            self.begin_end()
        return self.await_end(timeout_s)

    def await_end(self, timeout_s: float) -> bool:
        """Wait for an end that has begun, as `end` does."""
        try:
            code: int | None = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            code = None
        self.kill()
        return code == 0

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._thread.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except OSError:
                continue  # an order that the process did not read any more

    def _order(self, order: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{order}\n")
            self._process.stdin.flush()
        except OSError:
            raise RuntimeError(f"{self.name} has ended by itself; stderr:\n{self.said()}") from None

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            at_s = time.monotonic()
            try:
                self.account.take(line.rstrip("\n"), at_s)
            except NotALineError as error:
                self.account.errors.append((at_s, str(error)))
