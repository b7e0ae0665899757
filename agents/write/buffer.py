"""When is a file full? Pure: submissions and times in, a decision out.

The first of these seals a file:

- *size*: `file_bytes` are buffered, or `file_batches` batches. A commit costs time per batch, and a commit that
  outlasts the store's statement timeout could never succeed.
- *linger*: the oldest submission has waited `linger_ms`.
- *early*: at least `early_bytes` are buffered and nothing has arrived for `early_idle_ms`. Then every writer is likely
  to wait for us (a client whose window is full sends nothing until it is answered), so a longer wait brings no bytes.
  Two bounds keep the bill for PUTs small: at most `early_per_second` such seals, and files of `early_free_bytes` or
  more do not count among them (at 512 KiB that is 2,048 PUTs a GiB at most).

The buffer has no bound of its own; its owner bounds what it submits.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import StrEnum

from agents.write.submission import Submission


class SealReason(StrEnum):
    SIZE = "size"
    LINGER = "linger"
    EARLY = "early"
    DRAIN = "drain"


@dataclass(frozen=True, slots=True, kw_only=True)
class SealOptions:
    linger_ms: float
    file_bytes: int
    file_batches: int
    early_bytes: int
    early_idle_ms: float
    early_per_second: int
    """0 = never early."""
    early_free_bytes: int


class WriteBuffer:
    def __init__(self, options: SealOptions) -> None:
        self._options = options
        self._submissions: deque[tuple[float, Submission]] = deque()
        self._last_arrival_ms = 0.0
        self._early_seals_ms: deque[float] = deque(maxlen=max(options.early_per_second, 1))
        self.bytes = 0
        self.batches = 0

    def __len__(self) -> int:
        return len(self._submissions)

    def add(self, submission: Submission, now_ms: float) -> None:
        self._submissions.append((now_ms, submission))
        self._last_arrival_ms = now_ms
        self.bytes += submission.bytes
        self.batches += len(submission.batches)

    def due(self, now_ms: float) -> SealReason | None:
        """The reason to seal the buffer now; None = not yet."""
        if not self._submissions:
            return None
        if self.bytes >= self._options.file_bytes or self.batches >= self._options.file_batches:
            return SealReason.SIZE
        if now_ms >= self._linger_due_ms():
            return SealReason.LINGER
        early_due_ms = self._early_due_ms()
        return SealReason.EARLY if early_due_ms is not None and now_ms >= early_due_ms else None

    def next_due_ms(self) -> float | None:
        """When to ask `due` again if nothing arrives; None = only after an arrival."""
        if not self._submissions:
            return None
        early_due_ms = self._early_due_ms()
        linger_due_ms = self._linger_due_ms()
        return linger_due_ms if early_due_ms is None else min(early_due_ms, linger_due_ms)

    def take(self, reason: SealReason, now_ms: float) -> list[Submission]:
        """Remove the oldest submissions, up to `file_bytes` and `file_batches`, and at least one."""
        taken: list[Submission] = []
        taken_bytes = taken_batches = 0
        while self._submissions:
            _, submission = self._submissions[0]
            # At least one: a single submission may be larger than a file should be.
            if taken and (
                taken_bytes + submission.bytes > self._options.file_bytes
                or taken_batches + len(submission.batches) > self._options.file_batches
            ):
                break
            taken.append(submission)
            taken_bytes += submission.bytes
            taken_batches += len(submission.batches)
            self._submissions.popleft()
            self.bytes -= submission.bytes
            self.batches -= len(submission.batches)
        # Judged by what was taken: more may have been buffered than fits one file.
        if reason is SealReason.EARLY and taken_bytes < self._options.early_free_bytes:
            self._early_seals_ms.append(now_ms)
        return taken

    def _linger_due_ms(self) -> float:
        return self._submissions[0][0] + self._options.linger_ms

    def _early_due_ms(self) -> float | None:
        options = self._options
        if self.bytes < options.early_bytes or options.early_per_second == 0:
            return None
        due_ms = self._last_arrival_ms + options.early_idle_ms
        # Full: wait until the oldest of the counted seals is a second ago. `maxlen` drops it then.
        if self.bytes < options.early_free_bytes and len(self._early_seals_ms) == options.early_per_second:
            due_ms = max(due_ms, self._early_seals_ms[0] + 1000)
        return due_ms
