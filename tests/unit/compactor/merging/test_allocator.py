"""Freed memory stays with the process, as its page faults show. The test uses a process of its own, because the setting
cannot be reversed.
"""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import resource, sys, threading
from compactor.merging.allocator import keep_freed_memory

if sys.argv[1] == "kept":
    assert keep_freed_memory()

def fill():
    for _ in range(5):
        windows = [bytes([1]) * (8 << 20) for _ in range(3)]
        del windows

def in_turns():
    for _ in range(2):
        thread = threading.Thread(target=fill)
        thread.start()
        thread.join()

in_turns()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
in_turns()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    command = [sys.executable, "-c", PROGRAM, how]
    ran = subprocess.run(command, check=True, capture_output=True, text=True, cwd=Path(__file__).parents[4], timeout=60)
    return int(ran.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no such settings")
def test_windows_that_are_freed_and_made_again_cost_no_page_faults() -> None:
    assert faults("kept") < 500 < faults("as it was")
