"""What processes say, on stderr: one line an event, text for people or JSON for programs.

An event is a short constant lower-case message; what varies goes into fields (`log.info("file sealed", bytes=n)`), so
that lines can be counted and searched. Passwords inside URLs are masked. Warnings of libraries come out the same way.
A stderr that is gone (its reader was killed) is not an error: an agent must still be able to drain.
"""

from __future__ import annotations

import logging
import re
import sys
from typing import Any, Protocol, cast

import structlog

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
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


def get_logger(name: str) -> Logger:
    """The logger of a module (`get_logger(__name__)`). Before `configure` it shows warnings, as text."""
    if not structlog.is_configured():
        configure("warning", "text")
    return cast(Logger, structlog.get_logger(module=name))


def configure(level: str, format: str) -> None:
    """Set what is shown from now on, by loggers made before too: `log.level` and `log.format` of the settings."""
    chain: list[structlog.typing.Processor] = [
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


class _Libraries(logging.Handler):
    """What libraries say through the standard library's logging."""

    def emit(self, record: logging.LogRecord) -> None:
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
    return _PASSWORD.sub(r"\1:***@", line)
