"""A process between a compactor and a Spark driver: `python -m spark_jobs.submitters.supervise SECONDS COMMAND...`.

The command runs in a session and process group of its own, because a driver is several processes (a JVM, Python and
`bash` between them) that must end together. The supervisor ends it on SIGTERM, SIGINT or SIGHUP, and when stdin ends.
Stdin is a pipe whose other end the compactor holds, so that a compactor killed with -9 leaves no driver behind. It
sends SIGTERM to the group first, which lets Spark give its executors back, and SIGKILL after SECONDS. If the supervisor
itself is killed, the kernel kills the command.

The exit code is the command's, or 128 + the signal that ended it. The supervisor imports only the standard library: it
must start fast and must not fail.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from types import FrameType

GRACE_S = 8.0
"""The seconds from SIGTERM to SIGKILL."""
_PR_SET_PDEATHSIG = 1
_POLL_S = 0.05


def run(command: Sequence[str], *, grace_s: float = GRACE_S) -> int:
    """Run the command; returns when it has ended in any way."""
    stop = threading.Event()

    def told_to_end(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, told_to_end)

    libc = ctypes.CDLL(None, use_errno=True)  # loaded before the fork, after which as little as possible may happen
    supervisor_pid = os.getpid()

    def die_with_parent() -> None:
        die_with(libc, supervisor_pid)

    # No other thread runs yet, so the danger that preexec_fn's documentation warns of does not exist.
    child = subprocess.Popen(  # noqa: S603 - what we were told to run
        command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=die_with_parent
    )

    def until_stdin_ends() -> None:
        while os.read(0, 4096):
            pass
        stop.set()

    def until_child_ends() -> None:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # not reaped: its id stays taken
        stop.set()

    threads = [threading.Thread(target=each, daemon=True) for each in (until_stdin_ends, until_child_ends)]
    for thread in threads:
        thread.start()
    stop.wait()
    _signal_group(child.pid, signal.SIGTERM)  # also after it ended by itself: some of its processes may be left
    threads[1].join(grace_s)
    # Whatever is left of the group, also if the command itself has ended: its id is not reaped yet, so no stranger has
    # it.
    _signal_group(child.pid, signal.SIGKILL)
    code = child.wait()
    return code if code >= 0 else 128 - code


def die_with(libc: ctypes.CDLL, parent_pid: int) -> None:
    """Have the kernel kill this process when its parent dies; end it at once if the parent is dead already."""
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The kernel sends nothing for a parent that died between the fork and prctl. Then the parent is another process.
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signal.SIGKILL)


def _signal_group(group_id: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group_id, number)


if __name__ == "__main__":
    sys.exit(run(sys.argv[2:], grace_s=float(sys.argv[1])))
