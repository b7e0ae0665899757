"""CPU time, memory and context switches from /proc."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from bench.measures.usage import (
    Usage,
    children,
    parse_parent,
    parse_stat,
    parse_status,
    postgres_usage,
    resident_bytes,
    usage,
)

STAT = "4711 (a) b (c) S 99 4711 4711 0 -1 4194560 1000 0 0 0 250 50 7 8 20 0 4 0 12345 1 2 3"


def test_a_process_may_have_brackets_and_blanks_in_its_name() -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    assert parse_stat(STAT) == (250 / ticks, 50 / ticks)
    assert parse_parent(STAT) == 99


def test_status_gives_the_numbers_and_leaves_the_rest() -> None:
    text = "Name:\tpython\nState:\tS (sleeping)\nVmHWM:\t  1234 kB\nvoluntary_ctxt_switches:\t7\nEmpty:\n"
    assert parse_status(text) == {"VmHWM": 1234, "voluntary_ctxt_switches": 7}


def test_a_difference_keeps_the_later_peak() -> None:
    difference = Usage(3.0, 2.0, 900, 10, 5) - Usage(1.0, 0.5, 800, 4, 5)
    assert difference == Usage(2.0, 1.5, 900, 6, 0)
    assert difference.cpu_s == 3.5


def test_work_done_is_seen() -> None:
    # given a reading, when this process works for 50 ms of CPU
    before = usage(os.getpid())
    until = time.process_time() + 0.05
    while time.process_time() < until:
        pass
    # then the next reading shows it, within two ticks of the kernel's clock
    used = usage(os.getpid()) - before
    assert 0.03 <= used.cpu_s < 5
    assert used.peak_memory_bytes > 1 << 20


def test_a_server_is_summed_with_its_children() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert child.pid in children(os.getpid())
        both = postgres_usage(os.getpid())
        assert both.peak_memory_bytes > usage(os.getpid()).peak_memory_bytes
        child.communicate(b"\n")


def test_a_process_that_is_gone_has_no_reading() -> None:
    with subprocess.Popen(["true"]) as child:
        child.wait()
    with pytest.raises(FileNotFoundError):
        usage(child.pid)


def test_what_a_process_holds_is_no_more_than_its_peak() -> None:
    assert 0 < resident_bytes(os.getpid()) <= usage(os.getpid()).peak_memory_bytes
