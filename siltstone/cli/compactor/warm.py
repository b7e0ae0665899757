"""`siltstone compactor warm`: compile the kernels ahead of time, when an image is built."""

from __future__ import annotations

import importlib
from pathlib import Path

import click

from runtime.text import plural
from siltstone.terminal.plain import say


@click.command()
def warm() -> None:
    """Compile the kernels into their cache, then exit.

    For image builds: run it as the user who runs the compactor later. If the cache is up to date, nothing is compiled.

    \b
    Example:
      RUN siltstone compactor warm
    """

    from runtime.clock import SystemClock
    from wire import kernels
    from wire.kernels.code_cache import cache_directory

    importlib.import_module("compactor.merging.execute")  # loads all kernels that a merge uses
    clock = SystemClock()
    began_ms = clock.monotonic_ms()
    place = cache_directory()
    before = _compiled(place)
    kernels.warm()
    took = f"after {(clock.monotonic_ms() - began_ms) / 1000:.1f} s"
    fresh = len(_compiled(place) - before)
    if place is None:
        say(
            f"kernels are compiled, {took}, but not cached: no cache directory can be written, so the next process"
            " compiles them again"
        )
    elif fresh:
        say(f"kernels are ready, {took}: {plural(fresh, 'kernel')} compiled")
    else:
        say(f"kernels are ready, {took}: up to date, nothing was compiled")


def _compiled(place: Path | None) -> frozenset[str]:
    """The file names of the compiled kernels in the cache directory."""
    return frozenset() if place is None else frozenset(each.name for each in place.glob("kernel-*.nbc"))
