"""The watchdog over tests that hang in compiled code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(300)

ROOT = Path(__file__).resolve().parents[3]
LIMIT_S = 240
"""For a machine that is busy with other things; alone, a run takes 5 s."""
CONFTEST = """
import tests.fixtures.watchdog
tests.fixtures.watchdog.GRACE_S = 3
"""
# `PyDLL` keeps the interpreter's lock during a call, as a compiled loop does, and a mutex that its own thread holds is
# never granted. A compiled loop would take seconds of CPU to compile in each process of the run.
HANGS = """
import ctypes, pytest

def hang():
    mutex = ctypes.create_string_buffer(64)
    lock = ctypes.PyDLL(None).pthread_mutex_lock
    lock(mutex)
    lock(mutex)

@pytest.mark.timeout(1)
def test_that_never_ends():
    hang()
"""
SLEEPS = """
import time, pytest

@pytest.mark.timeout(1)
def test_that_sleeps():
    time.sleep(60)

def test_after_it():
    time.sleep(4)
"""


def run(folder: Path, source: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_it.py").write_text(source)
    # Only these plugins: to load all that are installed takes more than a second of CPU in each of four processes.
    plugins = ["-p", "tests.fixtures.watchdog", "-p", "xdist.plugin", "-p", "pytest_timeout"]
    command = [sys.executable, "-m", "pytest", *plugins, *options]
    # A worker's own variables would tell the run inside that it is a worker.
    ours = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment = {**ours, "PYTHONPATH": str(ROOT), "PYTHONFAULTHANDLER": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        try:
            stdout, stderr = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)  # the fault handler prints where each thread is
            stdout, stderr = process.communicate()
            pytest.fail(f"the run did not end within {LIMIT_S} s\n{stdout}\n{stderr}")
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


def test_a_test_that_hangs_in_a_compiled_loop_is_named_and_its_process_killed(tmp_path: Path) -> None:
    ran = run(tmp_path, HANGS, "-n0")

    assert "test_it.py::test_that_never_ends hangs in compiled code, past its timeout of 1.0 s" in ran.stderr
    assert ran.returncode == -signal.SIGKILL


def test_the_other_workers_of_a_run_go_on_and_the_killed_one_counts_as_failed(tmp_path: Path) -> None:
    ran = run(tmp_path, HANGS + "\ndef test_that_ends():\n    pass\n", "-n2")

    assert "test_it.py::test_that_never_ends hangs in compiled code" in ran.stderr
    assert "1 failed, 1 passed" in ran.stdout
    assert ran.returncode == pytest.ExitCode.TESTS_FAILED


def test_a_test_that_hears_of_its_timeout_is_left_alone(tmp_path: Path) -> None:
    ran = run(tmp_path, SLEEPS, "-n0")

    assert "1 failed, 1 passed" in ran.stdout
    assert "hangs in compiled code" not in ran.stderr
