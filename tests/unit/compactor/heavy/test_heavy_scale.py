"""Plans of 100,000 extents, 10,000 partitions or 10,000 slices: cut, stored, read, checked and combined.

Each step runs in a process of its own, and the limits are those of that process: its peak of memory, and CPU time,
which a busy machine hardly changes. The limits of time are five times the goals, so that they catch a step that is
quadratic and no slow machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.fixtures.large_plans import SHAPES, STEPS

CASES = [
    ("10,000 plain partitions", ["cut", "decode", "combine"]),
    ("10,000 slices", ["cut", "read units", "go on", "combine", "join slices"]),
    ("10,000 sliced partitions", ["cut", "combine"]),
]
CPU_S_MAX = 10.0
MEMORY_BYTES_MAX = 200 << 20


def test_each_shape_and_step_is_tried() -> None:
    assert {shape for shape, _ in CASES} == set(SHAPES)
    assert {step for _, steps in CASES for step in steps} | {"encode"} == set(STEPS)  # a cut encodes its plan


@pytest.mark.parametrize(("shape", "step"), [(shape, step) for shape, steps in CASES for step in steps])
def test_a_step_over_a_large_plan_takes_seconds_and_some_memory(shape: str, step: str) -> None:
    command = [sys.executable, "-m", "tests.fixtures.large_plans", shape, step]
    outcome = subprocess.run(command, capture_output=True, text=True, check=False, timeout=110, env=os.environ)
    assert outcome.returncode == 0, outcome.stderr
    took = json.loads(outcome.stdout)
    assert took["cpu_s"] < CPU_S_MAX, took
    assert took["memory_bytes"] < MEMORY_BYTES_MAX, took
