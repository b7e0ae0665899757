"""The supervisor between a compactor and a Spark driver."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

CHILD = """
import ctypes, os, sys
from spark_jobs.submitters.supervise import die_with
die_with(ctypes.CDLL(None), os.getppid() + int(sys.argv[1]))
print("lives")
"""


@pytest.mark.parametrize(("off_by", "code", "said"), [(0, 0, "lives\n"), (1, -signal.SIGKILL, "")])
def test_a_child_whose_parent_died_before_it_asked_for_the_signal_ends_itself(
    off_by: int, code: int, said: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(off_by)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (code, said), done.stderr
