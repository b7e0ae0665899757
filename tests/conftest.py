"""Fixtures shared by every test live in `tests/fixtures/`, one file per real part."""

from __future__ import annotations

import signal

pytest_plugins = [
    "tests.fixtures.chance",
    "tests.fixtures.agents",
    "tests.fixtures.certificates",
    "tests.fixtures.dev",
    "tests.fixtures.distribution",
    "tests.fixtures.exercised",
    "tests.fixtures.garbage",
    "tests.fixtures.token_issuer",
    "tests.fixtures.log_lines",
    "tests.fixtures.postgres",
    "tests.fixtures.s3",
    "tests.fixtures.aws_secrets",
    "tests.fixtures.skips",
    "tests.fixtures.spark",
    "tests.fixtures.watchdog",
    "tests.conformance.security.table",
    "tests.simulation.summary",
    # after those they import: pytest rewrites the asserts of what it loads first itself
    "tests.fixtures.bound_clusters",
    "tests.fixtures.faults",
    "tests.fixtures.compactors",
    "tests.fixtures.compacted_systems",
    "tests.fixtures.exports",
    "tests.fixtures.spark_topics",
]


def pytest_configure() -> None:
    """A shell starts what it puts in the background (`make test &`) with Ctrl-C ignored, and processes that tests start
    would inherit that. Tests send Ctrl-C to them."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
