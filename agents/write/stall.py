"""The write stall: how producers feel that live L0 files pile up because merges lag behind.

Every live L0 file costs rows in Postgres, entries in the memory of every agent and one more object for readers to open,
so their number must not grow for ever. Two limits bound it (`l0.stall.files`, `l0.refuse.files`; 0 switches one off):

- Above the first, *answers* to produce are delayed: by DELAY_MS_MIN at once, and by more the nearer the second limit
  is. The commit is never delayed: commits go on in order, so one producer's delay is not another's, and stored records
  can be read.
- Above the second, produce is refused with a retriable error, after the longest delay, so that retries do not flood us.

Writing resumes by itself when the number of files falls. `decide` is the rule, pure; `WriteStall` applies it in one
agent. A crash during a delay is a crash between commit and answer: the retry of an idempotent producer is a duplicate.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import IntEnum

from runtime.logging import get_logger
from runtime.metrics import Metrics

_log = get_logger(__name__)

DELAY_MS_MIN = 50.0
DELAY_MS_MAX = 1_000.0
"""A small part of the 30 s after which librdkafka and the Java client give up a request (their default
`request.timeout.ms`). Linger, PUT, commit and earlier requests on the connection have the rest, and an idempotent
producer with many partitions waits for one delay after another."""
REQUEST_SHARE_MAX = 0.5
"""Share of the time that a client gives its own request; no answer is held back beyond it. It matters for clients with
short timeouts."""
SPAN_WITHOUT_REFUSAL = 5
"""If nothing is ever refused, the longest delay is reached at this many times `l0.stall.files`."""
LEFT_BELOW = 0.9
"""The alarm ends below this share of the limit that it began at, so that a count that hovers there raises one alarm."""
DELAYED_MAX = 20_000
"""Answers held back at once (some 5 KB each; their records are gone). One more, and the oldest leaves at once."""
REMEDY = (
    "check that a compactor runs and keeps up (siltstone_live_l0_files); runbook: SiltstoneWriteStallDelaying in"
    " docs/operations/runbook.md"
)


class StallLevel(IntEnum):
    NONE = 0
    DELAYING = 1
    REFUSING = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class StallLimits:
    """`refuse_files` is above `stall_files` unless one of them is 0."""

    stall_files: int
    """Above it answers are delayed; 0 = never."""
    refuse_files: int
    """Above it produce is refused; 0 = never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    level: StallLevel
    delay_ms: float


def decide(live_files: int, limits: StallLimits) -> Verdict:
    """The delay or refusal at this many live L0 files."""
    if limits.refuse_files and live_files > limits.refuse_files:
        return Verdict(level=StallLevel.REFUSING, delay_ms=DELAY_MS_MAX)
    if not limits.stall_files or live_files <= limits.stall_files:
        return Verdict(level=StallLevel.NONE, delay_ms=0.0)
    full = limits.refuse_files or limits.stall_files * SPAN_WITHOUT_REFUSAL
    share = min((live_files - limits.stall_files) / (full - limits.stall_files), 1.0)
    return Verdict(level=StallLevel.DELAYING, delay_ms=DELAY_MS_MIN + share * (DELAY_MS_MAX - DELAY_MS_MIN))


def decide_alarm(alarm: StallLevel, live_files: int, limits: StallLimits) -> StallLevel:
    """The next level after `alarm`: up at once, down only when the files are clearly below its limit."""
    # Decide for a count that is larger by the margin: at, say, 90 % of a limit the alarm goes on.
    stays = decide(int(live_files / LEFT_BELOW), limits).level
    return max(decide(live_files, limits).level, min(alarm, stays))


def patience_ms(timeout_ms: float, waited_ms: float) -> float:
    """How long an answer may be held back for a request with `timeout_ms` that has already waited `waited_ms`."""
    return max(timeout_ms * REQUEST_SHARE_MAX - waited_ms, 0.0)


class WriteStall:
    """One agent's stall. The follower reports every change of the count; every produce request asks."""

    def __init__(self, limits: StallLimits, metrics: Metrics) -> None:
        self._limits = limits
        self._metrics = metrics
        metrics.l0_limit_files.labels(limit="stall").set(limits.stall_files)
        metrics.l0_limit_files.labels(limit="refuse").set(limits.refuse_files)
        self._verdict = decide(0, limits)
        self._alarm = StallLevel.NONE
        self._ended = False
        self._delayed: dict[asyncio.Future[None], None] = {}

    @property
    def delays(self) -> bool:
        return self._verdict.delay_ms > 0 and not self._ended

    @property
    def refusal(self) -> str | None:
        """The reason why produce is refused now; None = it is not."""
        if self._verdict.level is not StallLevel.REFUSING:
            return None
        return f"there are more live L0 files than l0.refuse.files ({self._limits.refuse_files}): merging lags behind"

    def files_changed(self, live_files: int) -> None:
        """Take note of the number of live L0 files."""
        self._verdict = decide(live_files, self._limits)
        self._metrics.write_stall_delay_seconds.set(self._verdict.delay_ms / 1000)
        self._metrics.write_stall_refusing.set(self._verdict.level is StallLevel.REFUSING)
        alarm = decide_alarm(self._alarm, live_files, self._limits)
        if alarm is not self._alarm:
            self._say(alarm, live_files)
            self._alarm = alarm
        if not self._verdict.delay_ms:
            self._let_go()

    async def hold_back(self, patience_ms: float, *, refused: bool = False) -> None:
        """Return when the present delay is over, at most `patience_ms` later, or at once when the stall ends."""
        delay_ms = min(self._verdict.delay_ms, patience_ms)
        if delay_ms <= 0 or self._ended:
            return
        self._metrics.produce_stalled_total.labels(outcome="refused" if refused else "delayed").inc()
        # Bounded memory counts for more than the delay; the oldest has waited longest.
        if len(self._delayed) >= DELAYED_MAX:
            oldest = next(iter(self._delayed))
            del self._delayed[oldest]
            _end(oldest)
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._delayed[turn] = None
        timer = loop.call_later(delay_ms / 1000, _end, turn)
        try:
            await turn
        finally:
            timer.cancel()
            self._delayed.pop(turn, None)

    def end(self) -> None:
        """Hold nothing back from now on: the agent stops, and stored records are answered."""
        self._ended = True
        self._let_go()

    def _let_go(self) -> None:
        for turn in self._delayed:
            _end(turn)

    def _say(self, alarm: StallLevel, live_files: int) -> None:
        facts = {"live_l0_files": live_files, "limit": self._limits.stall_files}
        if alarm is StallLevel.REFUSING:
            facts["limit"] = self._limits.refuse_files
            _log.error("write stall: produce is refused until files are merged", **facts, remedy=REMEDY)
        elif alarm is StallLevel.DELAYING and self._alarm is StallLevel.REFUSING:
            _log.warning("write stall: produce is taken again, answers are delayed", **facts, remedy=REMEDY)
        elif alarm is StallLevel.DELAYING:
            _log.warning("write stall: answers to producers are delayed", **facts, remedy=REMEDY)
        else:
            _log.info("write stall is over", **facts)


def _end(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_result(None)
