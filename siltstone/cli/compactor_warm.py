"""`siltstone compactor warm`: compile the kernels where it costs nobody time."""

from __future__ import annotations

import importlib

import click


@click.command()
def warm() -> None:
    """Compile the kernels into their cache and leave.

    Meant for building images, as the user who runs the compactor later. Does nothing where the cache is up to date.

    \b
    Example:
      RUN siltstone compactor warm
    """

    from siltstone.clock import SystemClock
    from wire import kernels

    importlib.import_module("compactor.execute")  # with it, all kernels that a merge uses
    clock = SystemClock()
    began_ms = clock.monotonic_ms()
    kernels.warm()
    click.echo(f"kernels are ready, after {(clock.monotonic_ms() - began_ms) / 1000:.1f} s")
