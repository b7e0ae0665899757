"""Run seeds by hand: `python -m tests.simulation --seed N -v` replays one and prints what happened, event by event."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from contextlib import nullcontext

from tests.simulation.faults import Kind, never, table
from tests.simulation.planted import PLANTED
from tests.simulation.world import run_seed


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    options.add_argument("--seed", type=int, help="run this one alone")
    options.add_argument("--seeds", default="0-127", help="FIRST-LAST (default %(default)s)")
    options.add_argument("-v", "--verbose", action="store_true", help="print the trace, with what agents log")
    options.add_argument("--hash", action="store_true", help="print the hash of each trace")
    options.add_argument("--plant", choices=sorted(PLANTED), help="put this bug in first")
    chosen = options.parse_args()
    seeds = [chosen.seed] if chosen.seed is not None else _range(chosen.seeds)
    if not seeds:
        options.error(f"--seeds {chosen.seeds}: write FIRST-LAST, for example 0-127")
    counts: Counter[Kind] = Counter()
    failed: list[int] = []
    started_s, callbacks = time.process_time(), 0
    for seed in seeds:
        with PLANTED[chosen.plant]() if chosen.plant else nullcontext():
            outcome = run_seed(seed, says_all=chosen.verbose, planted=chosen.plant or "")
        counts += outcome.counts
        callbacks += outcome.callbacks
        if chosen.verbose:
            print(*outcome.trace, sep="\n")
        if chosen.hash:
            print(seed, outcome.trace_hash)
        if outcome.violations:
            failed.append(seed)
            print(outcome)
    took_s = time.process_time() - started_s
    if not chosen.hash:
        print(table(counts))
        if missing := never(counts):
            print("not in these seeds (over 256 of them everything happens):", *missing, sep="\n  ")
        print(f"{len(seeds)} seeds, {len(failed)} failed {failed or ''}, {took_s:.1f} s of CPU, {callbacks} callbacks")
    return 1 if failed else 0


def _range(text: str) -> range:
    """Empty if the file cannot be read."""
    first, _, last = text.partition("-")
    try:
        return range(int(first), int(last or first) + 1)
    except ValueError:
        return range(0)


if __name__ == "__main__":
    sys.exit(main())
