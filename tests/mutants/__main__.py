"""`python -m tests.mutants [NAME...]`: plants each bug in a copy of the tree and runs the tests that must find it.

A line tells each result, the last line how many survived. Exit code 1 when one survived or could not be judged, 2 when
a name is unknown or a text to replace is not there once. The tree itself is never changed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from tests.fixtures.chance import MUTANTS as MUTANTS_PROFILE
from tests.mutants.mutant import Mutant, PlantError
from tests.mutants.planted import MUTANTS

ROOT = Path(__file__).resolve().parents[2]
NOT_COPIED = shutil.ignore_patterns(".git", ".venv", ".hypothesis", ".*_cache", "node_modules", "build", "dist")
SEED = "0"
"""Of Hypothesis: a bug that is found once is found by every run."""
TEST_S_MAX = 400
TESTS_FAILED = 1
"""pytest's exit code. Others say that the tests could not be run, which finds no bug."""
FAILED_LINE = re.compile(r"^(?:FAILED|ERROR) ([^\s\[]+)", re.MULTILINE)


@contextmanager
def copy_of_the_tree() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        copy = Path(folder) / "tree"
        # with __pycache__: compiled modules and kernels that the bug does not touch are not compiled again
        shutil.copytree(ROOT, copy, ignore=NOT_COPIED, symlinks=True)
        yield copy


def judge(mutant: Mutant) -> str:
    """Empty when every test of the mutant failed, else the reason why it counts as survived."""
    with copy_of_the_tree() as tree:
        (tree / mutant.file).write_text(mutant.planted(tree), encoding="utf-8")
        command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:randomly", "-p", "no:cacheprovider"]
        command += ["-m", "not soak", "--tb=no", f"--hypothesis-seed={SEED}"]
        command += [f"--hypothesis-profile={MUTANTS_PROFILE}", *mutant.tests]
        environ = {**os.environ, "PYTHONPATH": str(tree)}
        try:
            ran = subprocess.run(
                command, cwd=tree, env=environ, capture_output=True, text=True, timeout=TEST_S_MAX, check=False
            )
        except subprocess.TimeoutExpired:
            return f"the tests did not end within {TEST_S_MAX} s"
    if ran.returncode not in (0, TESTS_FAILED):
        return f"pytest ended with {ran.returncode}:\n{(ran.stdout + ran.stderr)[-2000:]}"
    failed = set(FAILED_LINE.findall(ran.stdout))
    passed = [test for test in mutant.tests if test not in failed]
    return f"not found by {', '.join(passed)}" if passed else ""


def report(mutant: Mutant) -> bool:
    """Judge one and print its line; True when it survived."""
    started = time.monotonic()
    reason = judge(mutant)
    seconds = time.monotonic() - started
    print(
        f"{'SURVIVED' if reason else 'found':<8} {mutant.name} ({seconds:.0f} s){': ' + reason if reason else ''}",
        flush=True,
    )
    return bool(reason)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants", description="Plant bugs; the tests must find them."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these (all by default)")
    parser.add_argument("--at-once", type=int, default=2, metavar="N", help="how many run at the same time (2)")
    given = parser.parse_args()
    known = {mutant.name: mutant for mutant in MUTANTS}
    unknown = [name for name in given.names if name not in known]
    if unknown:
        print(f"error: no mutant is called {', '.join(unknown)}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    chosen = [known[name] for name in given.names] or list(MUTANTS)
    try:
        for mutant in chosen:
            mutant.planted(ROOT)
    except PlantError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    with ThreadPoolExecutor(max_workers=given.at_once) as pool:
        survived = sum(pool.map(report, chosen))
    print(f"survived {survived}")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
