"""The audit log: refused operations and changes, with their principals. Lines of the logger `siltstone.audit`, JSON if
`log.format` is.

A denial is told at once. The same one again, of the same principal, host, operation and resource, is counted, and told
with its count (`times`) after WINDOW_MS. Above KINDS_MAX different ones in a window, the rest are counted together.
Metrics count every denial.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextvars import Context
from enum import Enum, auto
from typing import NamedTuple

from prometheus_client import Counter

from runtime.logging import AUDIT_LOG, get_logger, shows_debug
from runtime.metrics.declared import Declarations
from runtime.metrics.security import SecurityMetrics
from security.acls.values import Operation, ResourceType

WINDOW_MS = 10_000.0
KINDS_MAX = 1_000
NAME_CHARACTERS = 200
"""A name in a line is cut here: a client may ask about any text."""

_DENIED, _WOULD_BE_DENIED = "denied", "would be denied"
_MODES = {_DENIED: "on", _WOULD_BE_DENIED: "shadow"}
_log = get_logger(AUDIT_LOG)


class Question(NamedTuple):
    """An operation that a client wanted to do. A name of "" stands for any resource of the type."""

    principal: str
    host: str
    operation: Operation
    resource_type: ResourceType
    name: str

    def facts(self) -> Mapping[str, str]:
        return {
            "principal": self.principal[:NAME_CHARACTERS],
            "host": self.host,
            "operation": self.operation.name,
            "resource_type": self.resource_type.name,
            "resource": self.name[:NAME_CHARACTERS],
        }


class Told(Enum):
    """How the audit log tells of a denial."""

    NOW = auto()
    LATER = auto()
    """With the number of its repeats."""
    AMONG_OTHERS = auto()
    """In a number, without its principal and resource."""


class Repeats:
    """Counts what comes again within a window. Pure."""

    def __init__(self, kinds_max: int = KINDS_MAX) -> None:
        self._kinds_max = kinds_max
        self._times: dict[tuple[str, Question], int] = {}
        self._others = 0

    @property
    def is_empty(self) -> bool:
        return not self._times and not self._others

    def take_in(self, verdict: str, question: Question) -> Told:
        times = self._times.get((verdict, question))
        if times is not None:
            self._times[verdict, question] = times + 1
            return Told.LATER
        if len(self._times) < self._kinds_max:
            self._times[verdict, question] = 0
            return Told.NOW
        self._others += 1
        return Told.AMONG_OTHERS

    def take(self) -> tuple[Mapping[tuple[str, Question], int], int]:
        """The counts of this window, and of the others; a new window begins."""
        times = {each: count for each, count in self._times.items() if count}
        others, self._others = self._others, 0
        self._times.clear()
        return times, others


class Audit:
    def __init__(self, metrics: SecurityMetrics | None = None, *, window_ms: float = WINDOW_MS) -> None:
        self._metrics = metrics or SecurityMetrics(Declarations())
        self._counters: dict[tuple[str, ResourceType, Operation], Counter] = {}
        self._dropped = self._metrics.audit_events_dropped_total.labels(reason="kinds")
        self._window_ms = window_ms
        self._repeats = Repeats()
        self._timer: asyncio.TimerHandle | None = None
        self.tells_everything = shows_debug()
        """Whether what is allowed is told too."""

    def denied(self, question: Question) -> None:
        self._tell(_DENIED, question)

    def would_be_denied(self, question: Question) -> None:
        """In mode shadow."""
        self._tell(_WOULD_BE_DENIED, question)

    def changes(self, question: Question) -> None:
        """A change of topics, configs or ACLs is allowed."""
        _log.info("allowed", **question.facts())

    def allowed(self, question: Question) -> None:
        _log.debug("allowed", **question.facts())

    def close(self) -> None:
        """Tell what was counted."""
        if self._timer is not None:
            self._timer.cancel()
        self._window_over()

    def _tell(self, verdict: str, question: Question) -> None:
        self._counter(verdict, question).inc()
        match self._repeats.take_in(verdict, question):
            case Told.NOW:
                _log.info(verdict, **question.facts())
            case Told.AMONG_OTHERS:
                self._dropped.inc()
            case Told.LATER:
                pass
        if self._timer is None:
            # In a context of its own, or the line would carry the facts of one request.
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._window_ms / 1000, self._window_over, context=Context())

    def _counter(self, verdict: str, question: Question) -> Counter:
        """Kept: a request may be about 100,000 resources."""
        key = verdict, question.resource_type, question.operation
        counter = self._counters.get(key)
        if counter is None:
            counter = self._counters[key] = self._metrics.acl_denials_total.labels(
                resource_type=question.resource_type.name, operation=question.operation.name, mode=_MODES[verdict]
            )
        return counter

    def _window_over(self) -> None:
        self._timer = None
        times, others = self._repeats.take()
        for (verdict, question), count in times.items():
            _log.info(f"{verdict} again", times=count, **question.facts())
        if others:
            _log.info("more was denied than is told one by one", times=others)
