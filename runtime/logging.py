"""The log of a process, on stderr: one line per event, as text for people or JSON for programs.

An event is a short constant lower-case message. Its facts are fields (`log.info("file sealed", bytes=n)`), so that
lines can be counted and searched. Passwords inside URLs are masked. Warnings of libraries take the same way. A stderr
that is gone (its reader was killed) is not an error: an agent must still be able to drain.

`LOG_CONTEXT` is the work on whose behalf a line is written: a client's request, a file, a merge. Its facts are added to
each line that lacks them. They are computed only when a line is shown, so the context costs a request one variable.

At most `log.burst.lines` lines of one kind are shown in ten seconds (`runtime/log_bursts.py`). Lines of level debug are
excepted, because a reader who turns them on wants them all. `docs/operations/logs-and-traces.md` lists the fields.
"""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Final, Protocol, TextIO, cast

from runtime.clock import Clock, SystemClock
from runtime.log_bursts import Bursts
from runtime.passwords import masked
from runtime.structlog_without_rich import structlog
from runtime.text import printable

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
BURST_LINES = 100
LEFT_OUT = "lines left out"


class Logger(Protocol):
    """`event` is constant text; facts are keyword arguments."""

    def debug(self, event: str, **facts: Any) -> None: ...

    def info(self, event: str, **facts: Any) -> None: ...

    def warning(self, event: str, **facts: Any) -> None: ...

    def error(self, event: str, **facts: Any) -> None: ...

    def exception(self, event: str, **facts: Any) -> None:
        """An error with the traceback of the exception being handled."""
        ...


class LogContext(Protocol):
    def log_facts(self) -> Mapping[str, Any]:
        """Fields for every line that is written while this context is set."""
        ...


class About:
    """A context whose facts are known beforehand."""

    __slots__ = ("_facts",)

    def __init__(self, **facts: Any) -> None:
        self._facts = facts

    def log_facts(self) -> Mapping[str, Any]:
        return self._facts


LOG_CONTEXT: Final[ContextVar[LogContext | None]] = ContextVar("log_context", default=None)


@contextmanager
def log_context(context: LogContext | None) -> Generator[None]:
    """Lines written while the block runs, by the block and by tasks that it starts, get the facts of `context`."""
    token = LOG_CONTEXT.set(context)
    try:
        yield
    finally:
        LOG_CONTEXT.reset(token)


def get_logger(name: str) -> Logger:
    """The logger of a module (`get_logger(__name__)`). Before `configure` it shows warnings, as text."""
    if not structlog.is_configured():
        configure("warning", "text")
    return cast(Logger, structlog.get_logger(module=name))


def shows_debug() -> bool:
    """Whether lines of level debug are shown. Check it before gathering facts that are expensive."""
    return _shown.level <= logging.DEBUG


def configure(level: str, format: str, *, burst_lines: int = BURST_LINES, clock: Clock | None = None) -> None:
    """Set `log.level`, `log.format` and `log.burst.lines`, also for loggers that exist already."""
    global _shown  # one process, one stderr
    _shown = _Shown(LEVELS[level], Bursts(burst_lines), clock or SystemClock())
    chain: list[structlog.typing.Processor] = [
        _leave_out_bursts,
        _add_context,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if format == "json":
        # Tracebacks as text: structured ones hold local variables, and so clients' records.
        chain += [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    else:
        colors = sys.stderr.isatty()
        chain.append(_escape)
        chain.append(structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=_traceback, pad_event_to=0))
    structlog.configure(
        processors=[*chain, _mask_passwords],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(file=cast(Any, _Stderr())),
        cache_logger_on_first_use=False,
    )
    # `configure` may run twice; a second handler would write each library's line twice.
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if isinstance(handler, _Libraries)]:
        root.removeHandler(handler)
    root.addHandler(_Libraries(level=max(LEVELS[level], logging.WARNING)))


def tell_left_out(*, all_of_them: bool = False) -> None:
    """Log how many lines each storm that is over lost; or every storm, when the process ends.

    Processes call this now and then, because no later line of the kind may come to carry the last count.
    """
    for (module, event), lines in _shown.bursts.ended(_shown.clock.monotonic_ms(), all_of_them=all_of_them):
        # The count does not belong to the request that happens to be at work here.
        with log_context(None):
            get_logger(module).warning(LEFT_OUT, of=event, left_out=lines)


class _Shown:
    __slots__ = ("bursts", "clock", "level")

    def __init__(self, level: int, bursts: Bursts, clock: Clock) -> None:
        self.level, self.bursts, self.clock = level, bursts, clock


_shown = _Shown(logging.WARNING, Bursts(BURST_LINES), SystemClock())


def _leave_out_bursts(_: Any, method: str, line: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Runs first, so that a line that is left out costs little."""
    # The line that tells of left-out lines must not be left out itself.
    if method == "debug" or line["event"] == LEFT_OUT:
        return line
    left_out = _shown.bursts.admit((line.get("module", ""), line["event"]), _shown.clock.monotonic_ms())
    if left_out is None:
        raise structlog.DropEvent
    if left_out:
        line["left_out"] = left_out
    return line


def _add_context(_: Any, __: str, line: structlog.typing.EventDict) -> structlog.typing.EventDict:
    context = LOG_CONTEXT.get()
    if context is not None:
        for name, fact in context.log_facts().items():
            # The line's own fields win: they are about its event, the context is about its surroundings.
            line.setdefault(name, fact)
    return line


def _escape(_: Any, __: str, line: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Names in a line are other people's: they must not steer a reader's terminal. JSON escapes by itself."""
    for name, fact in line.items():
        if isinstance(fact, str):
            line[name] = printable(fact)
    return line


def _traceback(into: TextIO, raised: structlog.typing.ExcInfo) -> None:
    text = io.StringIO()
    structlog.dev.plain_traceback(text, raised)
    into.write(printable(text.getvalue()))


class _Libraries(logging.Handler):
    """Passes on the lines of libraries that use the standard library's logging."""

    def emit(self, record: logging.LogRecord) -> None:
        """Raises nothing, because a library that logs, perhaps in a `__del__`, does not expect an error."""
        try:
            self._say(record)
        except Exception:
            # The arguments do not fit the text, or the interpreter ends and cannot import: write the raw text instead.
            with suppress(Exception):
                _Stderr().write(masked(f"{record.name}: {record.msg} {record.args or ''}\n"))

    def _say(self, record: logging.LogRecord) -> None:
        log = get_logger(record.name)
        say = log.error if record.levelno >= logging.ERROR else log.warning
        say("library message", text=record.getMessage(), **({"exc_info": record.exc_info} if record.exc_info else {}))


class _Stderr:
    """The `sys.stderr` at the moment of writing. A line that cannot be written is lost."""

    def write(self, text: str) -> None:
        try:
            sys.stderr.write(text)
        except (OSError, ValueError):
            return

    def flush(self) -> None:
        try:
            sys.stderr.flush()
        except (OSError, ValueError):
            return


def _mask_passwords(_: Any, __: str, line: Any) -> str:
    """Runs last, so that it also covers facts and tracebacks."""
    return masked(line)
