"""The demo's own `siltstone dev`: a subprocess on a free port that is always stopped at the end.

It runs in its own session, so that Ctrl-C in the terminal reaches only the demo. The demo then stops it in order
(SIGTERM, and SIGKILL only after STOP_TIMEOUT_MS). Its log goes to a file; after a failure the last lines are printed.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.clock import Clock
from runtime.errors import SiltstoneError

START_TIMEOUT_MS = 120_000
STOP_TIMEOUT_MS = 30_000
POLL_MS = 50
LOG_LINES_SHOWN = 20
BOOTSTRAP_LINE = "bootstrap: "


class StackError(SiltstoneError):
    """`siltstone dev` did not start, or did not stop in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """A running `siltstone dev`."""

    data: Path
    bootstrap: str
    """host:port[,host:port...]"""
    pid: int
    metrics_urls: Sequence[str]


@contextmanager
def running_stack(data: Path, clock: Clock, *, options: Sequence[str] = ()) -> Generator[Stack]:
    """Run `siltstone dev --data DATA --listen 127.0.0.1:0` during the block, ready at its start and stopped at its end.

    `options` are further words of the command line. Raises StackError.
    """
    log_path, output_path = data / "dev.log", data / "dev.out"
    command = [sys.executable, "-m", "siltstone", "dev", "--data", str(data), "--listen", "127.0.0.1:0", *options]
    with (
        log_path.open("wb") as log,
        output_path.open("wb") as output,
        subprocess.Popen(  # noqa: S603 - our own interpreter and words of our own
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=log, start_new_session=True
        ) as process,
    ):
        try:
            bootstrap = _await_bootstrap(process, output_path, log_path, clock)
            yield Stack(data=data, bootstrap=bootstrap, pid=process.pid, metrics_urls=_metrics_urls(data))
        finally:
            _stop(process, log_path)


def _await_bootstrap(process: subprocess.Popen[bytes], output_path: Path, log_path: Path, clock: Clock) -> str:
    deadline_ms = clock.monotonic_ms() + START_TIMEOUT_MS
    while clock.monotonic_ms() < deadline_ms:
        for line in output_path.read_text(errors="replace").splitlines(keepends=True):
            if line.startswith(BOOTSTRAP_LINE) and line.endswith("\n"):
                return line.removeprefix(BOOTSTRAP_LINE).strip()
        try:
            code = process.wait(timeout=POLL_MS / 1000)
        except subprocess.TimeoutExpired:
            continue
        raise StackError(f"siltstone dev ended with exit code {code} before it was ready\n{_last_lines(log_path)}")
    raise StackError(f"siltstone dev was not ready after {START_TIMEOUT_MS // 1000} s\n{_last_lines(log_path)}")


def _stop(process: subprocess.Popen[bytes], log_path: Path) -> None:
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout=STOP_TIMEOUT_MS / 1000)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise StackError(
            f"siltstone dev (pid {process.pid}) did not stop within {STOP_TIMEOUT_MS // 1000} s and was killed\n"
            f"{_last_lines(log_path)}"
        ) from None


def _last_lines(log_path: Path) -> str:
    lines = log_path.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:]
    return "\n".join(["its last log lines:", *lines]) if lines else "its log is empty"


def _metrics_urls(data: Path) -> Sequence[str]:
    run_file = data / "run.json"
    running: Any = json.loads(run_file.read_text())
    urls = running["metrics_url"]
    return [urls] if isinstance(urls, str) else list(urls)
