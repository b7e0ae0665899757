"""Events with facts, on stderr, as text or JSON; no passwords."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator

import pytest
import structlog

from siltstone.logging import configure, get_logger


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers = list(root.handlers)
    before, configured = structlog.get_config(), structlog.is_configured()
    yield
    structlog.configure(**before) if configured else structlog.reset_defaults()
    root.handlers[:] = handlers


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
