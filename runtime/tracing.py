"""Traces, as the rooms see them: a span may have children, links and attributes, and ends once.

Nobody but `runtime/tracing_otel.py` knows OpenTelemetry. Where tracing is off (the default) there is no span
anywhere: `Tracing.on` is False, `CURRENT_SPAN` is None, and what a caller pays is one `if`.

A span that somebody works under is `CURRENT_SPAN`; tasks inherit it, as they do all context. Work that is done for many
(the file that carries the records of many requests) has a span of its own, linked to those it was done for. A span
that is never ended is never told of, so whoever starts one ends it however the work ends.
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
    """OpenTelemetry's, as far as we need them."""

    INTERNAL = "internal"
    SERVER = "server"
    """A client's request."""
    CLIENT = "client"
    """Our own request to a store."""


class Span(Protocol):
    def child(
        self,
        name: str,
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Attributes = NO_ATTRIBUTES,
        ago_ms: float = 0.0,
    ) -> Span:
        """A span under this one, begun now or `ago_ms` before."""
        ...

    def set(self, attributes: Attributes) -> None: ...

    def rename(self, name: str) -> None: ...

    def event(self, name: str, attributes: Attributes = NO_ATTRIBUTES) -> None:
        """Something that happened at this moment."""
        ...

    def link(self, other: Span) -> None:
        """Related, but neither above nor below."""
        ...

    def end(self, *, error: str = "") -> None:
        """`error`: the kind of error it ended with (few values: a Kafka error, an exception's name). Again: nothing."""
        ...


class Tracing(Protocol):
    @property
    def on(self) -> bool: ...

    def samples(self) -> bool:
        """Whether the request that has just come is one of those to be traced."""
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
        """A span with nothing above it."""
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
"""What the work at hand is part of, where that is traced."""


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
    except BaseException as error:
        span.end(error=type(error).__qualname__)
        raise
    else:
        span.end()
    finally:
        CURRENT_SPAN.reset(token)
