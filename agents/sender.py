"""Does a client wait for us? One connection that produces, judged by when it sends and when it is answered. Pure.

A client with a full window sends nothing until it is answered, and then sends at once. A client whose records trickle
in looks the same between two of them. So a connection is *blocked* if two things are true:

- In most of its last ROUNDS_KEPT rounds, its next request came within RETURN_MS of an answer.
- It has proved PROOFS_MIN times that it waits: it was silent for QUIET_MS before its file was sealed and until the
  answer, and came back in time. A file that was held for twice that long while it went on sending proves the opposite.

Rounds that are sealed early are too short to prove anything. So every PROOF_AGE_MS one of them is held until it can: a
trickle that keeps step with our answers by chance is found out there. `window` is a hint: the most requests that it had
outstanding. At its window no more can come.
"""

from __future__ import annotations

from collections import deque

RETURN_MS = 100.0
"""A client that waits for us sends again within this time. A Python client whose main thread is busy mostly takes 10 to
50 ms, and sometimes more: with a bound of 50, spells of a second and more were sealed by the linger alone."""
QUIET_MS = 110.0
"""Longer than RETURN_MS, so that no trickle can both keep step with early answers and be silent for this long."""
AWAITED_MS_MAX = 10.0
"""Others wait for a client that was just answered if it is usually back twice as soon as this."""
PROOF_AGE_MS = 8_000.0
ROUNDS_KEPT = 8
PROOFS_MIN = 2
_NEVER = float("-inf")
_SMOOTH = 0.25
"""Weight of the newest value in a running mean."""


class Sender:
    """Times are those of one monotonic clock, in ms."""

    __slots__ = (
        "_answered_ms",
        "_arriving_ms",
        "_first_ms",
        "_hold_ms",
        "_in_time",
        "_last_ms",
        "_pause_ms",
        "_proofs",
        "_proven_ms",
        "_quiet_ms",
        "_return_ms",
        "_sealed_outstanding",
        "away_ms",
        "outstanding",
        "window",
    )

    def __init__(self) -> None:
        self.outstanding = 0
        """Requests that were not answered yet."""
        self.window = 0
        self._sealed_outstanding = 0
        self._in_time: deque[bool] = deque(maxlen=ROUNDS_KEPT)
        """Whether it came back within RETURN_MS, for each of its last rounds."""
        self._proofs = 0
        self._first_ms: float | None = None
        """The oldest request that is not sealed yet."""
        self._last_ms = _NEVER
        self._arriving_ms = _NEVER
        """The last bytes of a request that is not complete."""
        self._hold_ms = self._quiet_ms = 0.0
        """At the last seal: how long its first request had been held, and how long the client had been silent."""
        self._answered_ms: float | None = None
        """None once a request came after it."""
        self._proven_ms = _NEVER
        self._pause_ms = 0.0
        """Between two requests of a round; a running mean."""
        self._return_ms = 5.0
        """Between an answer and the next request; a running mean."""
        self.away_ms = 0.0
        """Between its last answer and the request after it."""

    @property
    def is_blocked(self) -> bool:
        return self._proofs >= PROOFS_MIN and sum(self._in_time) * 2 > len(self._in_time)

    def sent(self, now_ms: float) -> None:
        """A request came and waits from now on."""
        if self._answered_ms is not None:
            self._judge(now_ms - self._answered_ms, now_ms)
            self._answered_ms = None
        elif self.outstanding:
            self._pause_ms += (now_ms - self._last_ms - self._pause_ms) * _SMOOTH
            if self._first_ms is None:
                self._quiet_ms = 0.0  # it sent while its file was on its way
        self.outstanding += 1
        self.window = max(self.window, self.outstanding)
        self._last_ms = now_ms
        if self._first_ms is None:
            self._first_ms = now_ms

    def silent_ms(self, now_ms: float) -> float:
        """The time since its last request."""
        return now_ms - self._last_ms

    def arriving(self, now_ms: float) -> None:
        """A part of its next request came."""
        self._arriving_ms = now_ms

    def sealed(self, now_ms: float) -> None:
        """All its requests in the buffer went into a file."""
        if self._first_ms is not None:
            self._hold_ms, self._quiet_ms = now_ms - self._first_ms, now_ms - self._last_ms
            self._sealed_outstanding = self.outstanding
            self._first_ms = None

    def answered(self, now_ms: float) -> None:
        self.outstanding -= 1
        self._answered_ms = now_ms

    def complete_ms(self, idle_ms: float) -> float:
        """When no more of its requests are to be expected before an answer. `idle_ms`: the silence that tells."""
        if self._arriving_ms > self._last_ms:
            complete_ms = self._arriving_ms + idle_ms
        elif self.outstanding >= self.window:
            complete_ms = self._last_ms
        else:
            complete_ms = self._last_ms + max(idle_ms, 2 * self._pause_ms)
        if self._last_ms - self._proven_ms > PROOF_AGE_MS:
            complete_ms = max(complete_ms, self._last_ms + QUIET_MS)
        return complete_ms

    def back_ms(self) -> float:
        """When a client that was just answered should have sent again; in the past if others must not wait for it."""
        assert self._answered_ms is not None
        back_ms = 1 + 2 * self._return_ms
        return self._answered_ms + (back_ms if back_ms <= AWAITED_MS_MAX else 0)

    def _judge(self, return_ms: float, now_ms: float) -> None:
        """Its first request after an answer has come."""
        self.away_ms = return_ms
        self._in_time.append(return_ms <= RETURN_MS)
        if return_ms > RETURN_MS:
            return
        self._return_ms += (return_ms - self._return_ms) * _SMOOTH
        if self._quiet_ms >= QUIET_MS:
            self._proofs += 1
            self._proven_ms = now_ms
            self.window = self._sealed_outstanding
        elif self._hold_ms >= 2 * QUIET_MS:
            self._proofs = 0
