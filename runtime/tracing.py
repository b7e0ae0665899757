"""Traces as the rest of the product sees them: a span may have children, links and attributes, and ends once.

Only `runtime/tracing_otel.py` knows OpenTelemetry. While tracing is off (the default) there are no spans: `Tracing.on`
is False, `CURRENT_SPAN` is None, and tracing costs a caller one `if`.

The span of the present work is `CURRENT_SPAN`; tasks inherit it like all context. Work for many requests (a file with
the records of many) has a span of its own, linked to theirs. A span that is never ended is never exported, so the code
that starts a span must end it on every path.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from enum import StrEnum
from typing import Final, Protocol, TypeAlias

AttributeValue: TypeAlias = str | bool | int | float | Sequence[str]
Attributes: TypeAlias = Mapping[str, AttributeValue]

NO_ATTRIBUTES: Final[Attributes] = {}


class SpanKind(StrEnum):
    """The kinds of OpenTelemetry that are used here."""

    INTERNAL = "internal"
    SERVER = "server"
    """A client's request."""
    CLIENT = "client"
    """A request of ours to a store."""


class Span(Protocol):
    def child(
        self,
        name: str,
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Attributes = NO_ATTRIBUTES,
        ago_ms: float = 0.0,
    ) -> Span:
        """A span below this one that began now, or `ago_ms` ago."""
        ...

    def set(self, attributes: Attributes) -> None: ...

    def rename(self, name: str) -> None: ...

    def event(self, name: str, attributes: Attributes = NO_ATTRIBUTES) -> None:
        """Record a moment within the span."""
        ...

    def link(self, other: Span) -> None:
        """Relate two spans of which neither is above the other."""
        ...

    def end(self, *, error: str = "") -> None:
        """`error`: the kind of error (few values: a Kafka error, an exception's name). A second call does nothing."""
        ...


class Tracing(Protocol):
    @property
    def on(self) -> bool: ...

    def samples(self) -> bool:
        """Whether to trace the request that has just arrived."""
        ...

    def start(
        self,
        name: str,
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        links: Sequence[Span] = (),
        attributes: Attributes = NO_ATTRIBUTES,
        ago_ms: float = 0.0,
    ) -> Span:
        """A span without a parent."""
        ...


class _NoSpan:
    def child(
        self,
        name: str,
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Attributes = NO_ATTRIBUTES,
        ago_ms: float = 0.0,
    ) -> Span:
        return self

    def set(self, attributes: Attributes) -> None: ...

    def rename(self, name: str) -> None: ...

    def event(self, name: str, attributes: Attributes = NO_ATTRIBUTES) -> None: ...

    def link(self, other: Span) -> None: ...

    def end(self, *, error: str = "") -> None: ...


class _NoTracing:
    on = False

    def samples(self) -> bool:
        return False

    def start(
        self,
        name: str,
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        links: Sequence[Span] = (),
        attributes: Attributes = NO_ATTRIBUTES,
        ago_ms: float = 0.0,
    ) -> Span:
        return NO_SPAN


NO_SPAN: Final[Span] = _NoSpan()
NO_TRACING: Final[Tracing] = _NoTracing()

CURRENT_SPAN: Final[ContextVar[Span | None]] = ContextVar("current_span", default=None)
"""The span of the present work; None if it is not traced."""


@contextmanager
def child_span(
    name: str, *, kind: SpanKind = SpanKind.INTERNAL, attributes: Attributes = NO_ATTRIBUTES
) -> Generator[Span | None]:
    """A part of the current span's work, and itself current, while the block runs. None where nothing is traced.

    A microsecond when off: for what waits for a store or another process, not for each request's own steps.
    """
    parent = CURRENT_SPAN.get()
    if parent is None:
        yield None
        return
    with current(parent.child(name, kind=kind, attributes=attributes)) as span:
        yield span


@contextmanager
def current(span: Span) -> Generator[Span]:
    """Work under `span` while the block runs, then end it; an exception is the error it ends with."""
    token = CURRENT_SPAN.set(span)
    try:
        yield span
    # A cancellation too: a span that is not ended is never exported.
    except BaseException as error:
        span.end(error=type(error).__qualname__)
        raise
    else:
        span.end()
    finally:
        CURRENT_SPAN.reset(token)
