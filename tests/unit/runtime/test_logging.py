"""Events with facts, on stderr, as text or JSON; no passwords."""

from __future__ import annotations

import json
import logging
import subprocess
import sys

import pytest

from runtime.clock import ManualClock
from runtime.log_bursts import WINDOW_MS
from runtime.logging import About, configure, get_logger, log_context, shows_debug, tell_left_out


def test_json_lines_hold_event_level_time_module_and_facts(capsys: pytest.CaptureFixture[str]) -> None:
    configure("info", "json")
    get_logger("agents.write").info("file sealed", bytes=5)
    captured = capsys.readouterr()
    assert captured.out == ""
    line = json.loads(captured.err)
    assert line.pop("timestamp").endswith("Z")
    assert line == {"event": "file sealed", "level": "info", "module": "agents.write", "bytes": 5}


def test_text_lines_hold_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    configure("info", "text")
    get_logger("agents.write").info("file sealed", bytes=5)
    line = capsys.readouterr().err
    assert "file sealed" in line and "bytes=5" in line and "module=agents.write" in line and line.count("\n") == 1


def test_less_severe_events_are_left_out_also_by_loggers_made_before(capsys: pytest.CaptureFixture[str]) -> None:
    configure("info", "json")
    log = get_logger("x")
    log.debug("not shown")
    configure("error", "json")
    log.warning("not shown either")
    log.error("shown")
    assert [json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()] == ["shown"]


def test_passwords_in_urls_are_masked(capsys: pytest.CaptureFixture[str]) -> None:
    configure("info", "json")
    get_logger("x").info("connected", url="postgresql://u:hunter2@127.0.0.1:5/db", error="at postgresql://u:hunter2@h")
    line = capsys.readouterr().err
    assert "hunter2" not in line
    assert json.loads(line)["url"] == "postgresql://u:***@127.0.0.1:5/db"


@pytest.mark.parametrize("format", ["text", "json"])
def test_an_exception_comes_with_its_traceback_and_without_passwords(
    capsys: pytest.CaptureFixture[str], format: str
) -> None:
    configure("info", format)
    try:
        raise ValueError("cannot reach postgresql://u:hunter2@h/db")
    except ValueError:
        get_logger("x").exception("poll failed")
    shown = capsys.readouterr().err
    assert "poll failed" in shown and "ValueError" in shown and "test_logging.py" in shown
    assert "hunter2" not in shown


def test_warnings_of_libraries_come_out_the_same_way_and_once(capsys: pytest.CaptureFixture[str]) -> None:
    configure("info", "json")
    configure("info", "json")
    logging.getLogger("asyncio").warning("slow %s", "callback")
    logging.getLogger("asyncio").info("chatter")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(line["module"], line["event"], line["text"]) for line in lines] == [
        ("asyncio", "library message", "slow callback")
    ]


def test_a_stderr_that_is_gone_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone:
        def write(self, _: str) -> None:
            raise BrokenPipeError

        flush = isatty = lambda self: False

    configure("info", "text")
    monkeypatch.setattr(sys, "stderr", Gone())
    get_logger("x").info("nobody hears this")


AT_SHUTDOWN = """
import logging
from runtime.logging import configure

class Unclosed:
    def __init__(self, *given):
        self.given, self.log = given, logging.getLogger("aiohttp")

    def __del__(self):
        self.log.error(*self.given)

configure("info", "FORMAT")
left = Unclosed("Unclosed session to postgresql://u:hunter2@h/db")
wrong = Unclosed("%d sessions", "no")
"""


@pytest.mark.parametrize("format", ["text", "json"])
def test_what_libraries_complain_of_while_the_interpreter_ends_is_told(format: str) -> None:
    program = AT_SHUTDOWN.replace("FORMAT", format)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert "postgresql://u:***@h/db" in ended.stderr, ended.stderr
    assert "Error" not in ended.stderr and "Exception" not in ended.stderr, ended.stderr


def test_a_library_whose_message_is_wrong_does_not_meet_an_exception(capsys: pytest.CaptureFixture[str]) -> None:
    configure("info", "json")
    wrong = logging.LogRecord("aiohttp", logging.ERROR, "", 0, "%d sessions to %s", ("no", "u://me:hunter2@h"), None)
    logging.getLogger().handlers[-1].handle(wrong)
    assert capsys.readouterr().err == "aiohttp: %d sessions to %s ('no', 'u://me:***@h')\n"


def lines_of(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_lines_say_on_whose_behalf_they_are_written_and_their_own_facts_win(capsys: pytest.CaptureFixture[str]) -> None:
    configure("info", "json")
    with log_context(About(job=7, kind="level")):
        get_logger("x").info("merge done", kind="daily")
    get_logger("x").info("swept")
    first, second = lines_of(capsys)
    assert (first["job"], first["kind"]) == (7, "daily")
    assert "job" not in second


def test_whose_behalf_it_is_is_not_asked_for_a_line_that_is_not_shown() -> None:
    class Asked:
        def log_facts(self) -> dict[str, object]:
            raise AssertionError("asked")

    configure("info", "json")
    assert not shows_debug()
    with log_context(Asked()):
        get_logger("x").debug("not shown")


def test_a_storm_of_lines_is_cut_short_and_says_by_how_much(capsys: pytest.CaptureFixture[str]) -> None:
    # given a storm of one line, and another line in it
    clock = ManualClock()
    configure("debug", "json", burst_lines=3, clock=clock)
    log = get_logger("x")
    for _ in range(10):
        log.error("file given up")
    log.warning("another")
    assert [line["event"] for line in lines_of(capsys)] == ["file given up"] * 3 + ["another"]
    # when it goes on later, then its first line reports the lines left out
    clock.advance_ms(WINDOW_MS)
    log.error("file given up")
    assert [(line["event"], line["left_out"]) for line in lines_of(capsys)] == [("file given up", 7)]
    # when it is over, then a line of its own reports that
    for _ in range(5):
        log.error("file given up")
    lines_of(capsys)
    clock.advance_ms(WINDOW_MS)
    tell_left_out()
    tell_left_out()
    assert [(line["event"], line["module"], line["of"], line["left_out"]) for line in lines_of(capsys)] == [
        ("lines left out", "x", "file given up", 3)
    ]


def test_lines_of_level_debug_are_never_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    configure("debug", "json", burst_lines=2)
    for _ in range(9):
        get_logger("x").debug("file sealed")
    assert len(lines_of(capsys)) == 9
