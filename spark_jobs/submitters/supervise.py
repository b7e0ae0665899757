"""Between a compactor and a Spark driver: `python -m spark_jobs.submitters.supervise SECONDS COMMAND...`.

The command runs in a session and process group of its own, because a driver is several processes (a JVM, Python and
`bash` between them) which have to end together. It is ended when this process is told to (SIGTERM, SIGINT, SIGHUP) and
when stdin ends: that is a pipe whose other end the compactor holds, so that a compactor killed with -9 leaves no driver
behind. First SIGTERM to the group, which lets Spark give its executors back, and after SECONDS SIGKILL. Should this
process be killed itself, the kernel kills the command.

The exit code is the command's, or 128 + the signal that ended it. Only the standard library is imported: it starts fast
and must not fail.
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
"""From SIGTERM to SIGKILL."""
_PR_SET_PDEATHSIG = 1
_POLL_S = 0.05


def run(command: Sequence[str], *, grace_s: float = GRACE_S) -> int:
    """Blocks until the command has ended, one way or the other."""
    stop = threading.Event()

    def told_to_end(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, told_to_end)

    libc = ctypes.CDLL(None, use_errno=True)  # loaded before the fork, where as little as possible may happen

    def die_with_parent() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    # no other thread runs yet, so what preexec_fn warns of cannot happen
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
    _signal_group(child.pid, signal.SIGTERM)  # also after it ended by itself: something of it may be left
    threads[1].join(grace_s)
    _signal_group(child.pid, signal.SIGKILL)
    code = child.wait()
    return code if code >= 0 else 128 - code


def _signal_group(group_id: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group_id, number)


if __name__ == "__main__":
    sys.exit(run(sys.argv[2:], grace_s=float(sys.argv[1])))
