"""A driver as a child process, under `spark_jobs/submitters/supervise.py`, and its last words.

The supervisor's stdin is the lifeline: a pipe that ends with this process. Its stdout carries the driver's output,
which is read as it comes, because a full pipe would stop the driver. Lines of JSON report finished units and go to the
log; the last of the other lines are kept to explain a failure.
"""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

import spark_jobs
from compactor.heavy.submitter import Phase, SubmissionState, SubmitError
from runtime.logging import get_logger
from runtime.settings.loading import ENVIRONMENT_PREFIX
from spark_jobs.faults import names_fault, remedy_of
from spark_jobs.submitters.supervise import GRACE_S

LIBPQ_PREFIX = "PG"
LINES_KEPT = 30
LINE_CHARS_MAX = 400
KILL_AFTER_S = 4.0
"""The seconds that the supervisor needs beyond the driver's own."""
LEFT_OPEN_S = 1.0
"""The seconds to wait for the end of the output after the supervisor has gone: if the supervisor was killed, the
remains of its driver may hold the output open."""
_log = get_logger(__name__)


class ChildSubmission:
    """A `compactor.heavy.submitter.Submission`."""

    def __init__(
        self,
        process: Process,
        output: asyncio.StreamReader,
        pipe: asyncio.ReadTransport,
        command: Sequence[str],
        grace_s: float,
    ) -> None:
        self._process = process
        self._output, self._pipe = output, pipe
        self._grace_s = grace_s
        self._name = Path(command[0]).name
        self._said: deque[str] = deque(maxlen=LINES_KEPT)
        self._cause = ""
        """The first line that names a known fault: much may come after it."""
        self._cancelled = False
        self._reading = asyncio.create_task(self._read(), name=f"driver-{process.pid}")

    @property
    def pid(self) -> int:
        """The supervisor's process id."""
        return self._process.pid

    @property
    def last_lines(self) -> Sequence[str]:
        """The last output, oldest first, without the lines of JSON."""
        return list(self._said)

    @property
    def has_ended(self) -> bool:
        return self._process.returncode is not None

    async def state(self) -> SubmissionState:
        code = self._process.returncode
        if code is None:
            return SubmissionState(Phase.RUNNING, "\n".join(self._said))
        await self._read_to_end()
        if code == 0:
            return SubmissionState(Phase.SUCCEEDED)
        how = "was cancelled" if self._cancelled else _ended(self._name, code)
        cause = [self._cause, f"remedy: {remedy_of(self._cause)}"] if self._cause and not self._cancelled else []
        return SubmissionState(Phase.FAILED, "\n".join([how, *cause, *self._said]))

    async def cancel(self) -> None:
        """Returns when the driver has ended."""
        if self._process.returncode is None:
            self._cancelled = True
            self._process.terminate()
            try:
                async with asyncio.timeout(self._grace_s + KILL_AFTER_S):
                    await self._process.wait()
            except TimeoutError:
                _log.warning("driver killed", pid=self.pid)
                self._process.kill()  # the kernel kills the driver with it
                await self._process.wait()
        await self._read_to_end()

    async def let_go(self) -> None:
        """As `cancel`: the driver belongs to this process, so no other compactor can go on with it."""
        await self.cancel()

    async def _read_to_end(self) -> None:
        """Read the rest of the output after the supervisor has ended."""
        await asyncio.wait({self._reading}, timeout=LEFT_OPEN_S)
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)

    async def _read(self) -> None:
        with closing(self._pipe):
            while True:
                try:
                    raw = await self._output.readline()
                except ValueError:  # a line longer than the reader's buffer, which dropped it
                    continue
                if not raw:
                    return
                line = raw.decode(errors="replace").rstrip()
                _log.debug("driver", pid=self.pid, line=line[:LINE_CHARS_MAX])
                if line and not line.startswith("{"):
                    self._said.append(line[:LINE_CHARS_MAX])
                    if not self._cause and names_fault(line):
                        self._cause = self._said[-1]


def driver_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Our environment for a driver, without any way into Postgres: neither our settings nor the variables that libpq
    reads (PGHOST, PGPASSWORD, PGSERVICE ...). Tasks need none.
    """
    return {name: value for name, value in environ.items() if not name.startswith((ENVIRONMENT_PREFIX, LIBPQ_PREFIX))}


async def start_child(
    command: Sequence[str], environ: Mapping[str, str], *, grace_s: float = GRACE_S
) -> ChildSubmission:
    """Start a driver. `grace_s`: from SIGTERM to SIGKILL. Raises SubmitError."""
    root = str(Path(spark_jobs.__file__).parents[1])
    supervisor = [sys.executable, "-P", "-m", "spark_jobs.submitters.supervise", str(grace_s), *command]
    ours, theirs = os.pipe()
    output = asyncio.StreamReader()
    pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(output), os.fdopen(ours, "rb", buffering=0)
    )
    try:
        process = await asyncio.create_subprocess_exec(
            *supervisor,
            env={**environ, "PYTHONPATH": os.pathsep.join(filter(None, (root, environ.get("PYTHONPATH"))))},
            stdin=PIPE,
            stdout=theirs,
            stderr=STDOUT,
            start_new_session=True,  # Ctrl-C is for the compactor, which cancels what it submitted
        )
    except OSError as error:
        pipe.close()
        raise SubmitError(f"the Spark driver could not be started: {error}") from error
    finally:
        os.close(theirs)
    return ChildSubmission(process, output, pipe, command, grace_s)


def _ended(name: str, code: int) -> str:
    return f"{name} was killed by signal {code - 128}" if code > 128 else f"{name} ended with exit code {code}"
