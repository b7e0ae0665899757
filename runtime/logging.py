"""What processes say, on stderr: one line an event, text for people or JSON for programs.

An event is a short constant lower-case message; what varies goes into fields (`log.info("file sealed", bytes=n)`), so
that lines can be counted and searched. Passwords inside URLs are masked. Warnings of libraries come out the same way.
A stderr that is gone (its reader was killed) is not an error: an agent must still be able to drain.

On whose behalf a line is written (a client's request, a file, a merge) is `LOG_CONTEXT`; its facts are added to every
line that does not say them itself. They are only asked for when a line is shown, so what a request pays is setting a
variable. Of lines of one kind no more than `log.burst.lines` are shown in ten seconds (`runtime/log_bursts.py`),
those of level debug excepted: who asks for them wants them all. `docs/operations/logs-and-traces.md` lists the fields.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Final, Protocol, cast

import structlog

from runtime.clock import Clock, SystemClock
from runtime.log_bursts import Bursts

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
BURST_LINES = 100
LEFT_OUT = "lines left out"
_PASSWORD = re.compile(r"(://[^/\s:@]*):[^/\s@]+@")


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
        """For every line written meanwhile."""
        ...


class About:
    """A context of facts that are known beforehand."""

    __slots__ = ("_facts",)

    def __init__(self, **facts: Any) -> None:
        self._facts = facts

    def log_facts(self) -> Mapping[str, Any]:
        return self._facts


LOG_CONTEXT: Final[ContextVar[LogContext | None]] = ContextVar("log_context", default=None)


@contextmanager
def log_context(context: LogContext | None) -> Generator[None]:
    """Lines that are written while the block runs, by it and by tasks it begins, are on behalf of `context`."""
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
    """Whether lines of level debug are shown: ask before gathering many facts for one."""
    return _shown.level <= logging.DEBUG


def configure(level: str, format: str, *, burst_lines: int = BURST_LINES, clock: Clock | None = None) -> None:
    """Set what is shown from now on, by loggers made before too: `log.level`, `log.format` and `log.burst.lines` of
    the settings."""
    global _shown  # one process, one stderr
    _shown = _Shown(LEVELS[level], Bursts(burst_lines), clock or SystemClock())
    chain: list[structlog.typing.Processor] = [
        _leave_out_bursts,
        _add_context,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if format == "json":
        # tracebacks as text: the structured ones hold local variables, that is clients' records
        chain += [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    else:
        plain = structlog.dev.plain_traceback
        colors = sys.stderr.isatty()
        chain.append(structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=plain, pad_event_to=0))
    structlog.configure(
        processors=[*chain, _mask_passwords],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(file=cast(Any, _Stderr())),
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if isinstance(handler, _Libraries)]:
        root.removeHandler(handler)
    root.addHandler(_Libraries(level=max(LEVELS[level], logging.WARNING)))


def tell_left_out(*, all_of_them: bool = False) -> None:
    """Say how many lines were left out of storms that are over; or of all, when the process ends. To be called now
    and then: a storm's last count has no other line to go with."""
    for (module, event), lines in _shown.bursts.ended(_shown.clock.monotonic_ms(), all_of_them=all_of_them):
        with log_context(None):
            get_logger(module).warning(LEFT_OUT, of=event, left_out=lines)


class _Shown:
    __slots__ = ("bursts", "clock", "level")

    def __init__(self, level: int, bursts: Bursts, clock: Clock) -> None:
        self.level, self.bursts, self.clock = level, bursts, clock


_shown = _Shown(logging.WARNING, Bursts(BURST_LINES), SystemClock())


def _leave_out_bursts(_: Any, method: str, line: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """First of all: what is left out costs little."""
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
            line.setdefault(name, fact)
    return line


class _Libraries(logging.Handler):
    """What libraries say through the standard library's logging."""

    def emit(self, record: logging.LogRecord) -> None:
        """Raises nothing: whoever complains, in a `__del__` perhaps, does not expect it."""
        try:
            self._say(record)
        except Exception:
            # its arguments do not fit; or the interpreter ends, and nothing can be imported: plain words have to do
            with suppress(Exception):
                _Stderr().write(_masked(f"{record.name}: {record.msg} {record.args or ''}\n"))

    def _say(self, record: logging.LogRecord) -> None:
        log = get_logger(record.name)
        say = log.error if record.levelno >= logging.ERROR else log.warning
        say("library message", text=record.getMessage(), **({"exc_info": record.exc_info} if record.exc_info else {}))


class _Stderr:
    """The stderr of the moment of writing. What cannot be written is lost."""

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
    """Last of all, so that no fact and no traceback gets past."""
    return _masked(line)


def _masked(text: str) -> str:
    # a function: to read a template, `re` imports a module, which it cannot while the interpreter ends
    return _PASSWORD.sub(lambda found: f"{found[1]}:***@", text)
