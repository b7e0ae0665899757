"""Run histories by hand: `python -m tests.compaction --seed N -v` replays one and prints its events."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from tests.compaction.histories import NO_HABITS, PARTIAL, STEPS, run_seed
from tests.compaction.transactions.world import run_transactions


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m tests.compaction", description=__doc__)
    options.add_argument("--seed", type=int, help="run this one alone")
    options.add_argument("--seeds", default="0-99", help="FIRST-LAST (default %(default)s)")
    options.add_argument("--steps", type=int, default=STEPS)
    options.add_argument("--partial", action="store_true", help="mostly merges of a few extents")
    options.add_argument("--heavy", action="store_true", help="merges are cut into units, as for Spark")
    options.add_argument("--transactions", action="store_true", help="histories of transactional clients")
    options.add_argument("-v", "--verbose", action="store_true")
    chosen = options.parse_args()
    first, _, last = chosen.seeds.partition("-")
    seeds = [chosen.seed] if chosen.seed is not None else range(int(first), int(last or first) + 1)
    counts: Counter[str] = Counter()
    failed: list[int] = []
    started_s = time.process_time()
    for seed in seeds:
        run = run_transactions if chosen.transactions else run_seed
        outcome = run(seed, steps=chosen.steps, habits=PARTIAL if chosen.partial else NO_HABITS, heavy=chosen.heavy)
        counts.update(outcome.counts)
        if chosen.verbose:
            print(*outcome.says, sep="\n")
        if outcome.violations:
            failed.append(seed)
            print(outcome)
    for what, times in sorted(counts.items()):
        print(f"{what:24} {times}")
    print(
        f"{len(seeds)} histories, {len(failed)} failed {failed or ''}, {time.process_time() - started_s:.1f} s of CPU"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
