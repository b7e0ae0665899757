"""`python -m bench`: runs benchmarks one after the other. Progress on stderr, tables on stdout.

A benchmark that fails is reported and the others still run; the exit code is then 1. The files of --json and --markdown
are written after every table, so the tables measured before a failure or Ctrl-C are kept.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from bench.registry import BENCHMARKS, Benchmark, Size, find
from bench.table import Table, render_json, render_markdown, render_text

EXAMPLES = """\
examples:
  python -m bench                          all benchmarks in the small size
  python -m bench commit --full            one of them, every row
  python -m bench metadata file_build --markdown tables.md
"""


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    try:
        benchmarks = find(arguments.names)
    except ValueError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    # Raises an exception, so that started servers are stopped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    size = Size.FULL if arguments.full else Size.SMALL
    tables: list[Table] = []
    print(machine(), file=sys.stderr)
    failed = [
        benchmark.name
        for benchmark in benchmarks
        if not _run(benchmark, size, tables, json=arguments.json, markdown=arguments.markdown)
    ]
    if failed:
        print(f"bench: failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def machine() -> str:
    """One line about the machine of the measurement."""
    cpus = len(os.sched_getaffinity(0))
    return f"{platform.system()} {platform.machine()}, {cpus} CPUs, {platform.python_implementation()} " + (
        platform.python_version()
    )


def _run(benchmark: Benchmark, size: Size, tables: list[Table], *, json: Path | None, markdown: Path | None) -> bool:
    """Append the benchmark's tables to `tables`, print and save them. Returns whether it finished."""
    print(f"== {benchmark.name}: {benchmark.doc} ({size.value})", file=sys.stderr, flush=True)
    started = time.monotonic()
    try:
        for table in benchmark.run(size):
            tables.append(table)
            print(render_text(table), flush=True)
            if json is not None:
                json.write_text(render_json(tables), encoding="utf-8")
            if markdown is not None:
                markdown.write_text("\n".join(map(render_markdown, tables)), encoding="utf-8")
    except Exception:
        traceback.print_exc()
        return False
    print(f"== {benchmark.name}: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    return True


def _parser() -> argparse.ArgumentParser:
    width = max(len(benchmark.name) for benchmark in BENCHMARKS)
    names = "\n".join(f"  {benchmark.name:<{width}} {benchmark.doc}" for benchmark in BENCHMARKS)
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Benchmarks that print ratios to limits measured in the same run.",
        epilog=f"benchmarks:\n{names}\n\n{EXAMPLES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="which to run; all when none is named")
    parser.add_argument("--full", action="store_true", help="every row, long enough to be steady")
    parser.add_argument("--json", type=Path, metavar="FILE", help="save the tables as JSON, unrounded")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="save the tables as Markdown")
    return parser


if __name__ == "__main__":
    sys.exit(main())
