"""When is a file full? Pure: submissions and times in, a decision out.

The first of these seals a file:

- *size*: `file_bytes` are buffered, or `file_batches` batches. A commit costs time per batch, and a commit that
  outlasts the store's statement timeout could never succeed.
- *linger*: the oldest submission has waited `linger_ms`.
- *early*: to wait longer brings no bytes, because the clients that would send them wait for us, and the budget
  (`write/budget.py`) can pay for one more file. Either
  - all blocked connections (`agents/sender.py`) have sent what they can: each is at its window or has fallen silent,
    and those that were answered just now are back or late. Other connections' bytes ride along and have no say. Or
  - `early_bytes` are buffered, and no connection at all has sent anything for `early_idle_ms`. This finds writers that
    are not known yet.

A small file is not sealed early while EARLY_ON_THE_WAY_MAX files wait for their commit: commits go in order, so it
would wait too, and clients that come meanwhile can share it.

The buffer has no bound of its own; its owner bounds what it submits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from agents.sender import Sender
from agents.write.budget import TOKENS_MAX, EarlyBudget
from agents.write.submission import Submission

EARLY_ON_THE_WAY_MAX = 2
"""One whose PUT is under way while the other is committed."""


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
    early_per_second: float
    """0 = never early."""
    early_free_bytes: int
    early_tokens_max: float = TOKENS_MAX


class WriteBuffer:
    def __init__(self, options: SealOptions) -> None:
        self._options = options
        self._budget = EarlyBudget(
            per_second=options.early_per_second,
            free_bytes=options.early_free_bytes,
            tokens_max=options.early_tokens_max,
        )
        self._submissions: deque[tuple[float, Submission]] = deque()
        self._last_arrival_ms = 0.0
        self._blocked: set[Sender] = set()
        """Blocked connections with bytes here."""
        self._awaited: dict[Sender, float] = {}
        """Blocked connections that may send more before they are answered, and until when they are awaited."""
        self._on_the_way = 0
        """Files that were taken and not answered yet."""
        self.bytes = 0
        self.batches = 0

    def __len__(self) -> int:
        return len(self._submissions)

    def add(self, submission: Submission, now_ms: float) -> None:
        self._submissions.append((now_ms, submission))
        self._last_arrival_ms = now_ms
        self.bytes += submission.bytes
        self.batches += len(submission.batches)
        if submission.sender is not None:
            submission.sender.sent(now_ms)
            self._note(submission.sender, now_ms)

    def answered(self, senders: Iterable[Sender], now_ms: float) -> None:
        """A file was answered: the connections of its requests, once for each request."""
        self._on_the_way -= 1
        for sender in senders:
            sender.answered(now_ms)
            self._awaited.pop(sender, None)
            if sender.is_blocked:
                self._awaited[sender] = sender.back_ms()
        self._forget_the_gone(now_ms)

    def set_early_share(self, share: float, now_ms: float) -> None:
        """Lower the rate of early seals to this share; 0 = none."""
        self._budget.set_share(share, now_ms)

    def early_rate(self, now_ms: float) -> tuple[float, float]:
        """Early seals a second that the budget allows now, and its tokens in hand."""
        return self._budget.rate, self._budget.tokens(now_ms)

    def due(self, now_ms: float) -> SealReason | None:
        """The reason to seal the buffer now; None = not yet."""
        if not self._submissions:
            return None
        if self.bytes >= self._options.file_bytes or self.batches >= self._options.file_batches:
            return SealReason.SIZE
        if now_ms >= self._linger_due_ms():
            return SealReason.LINGER
        early_due_ms = self._early_due_ms(now_ms)
        return SealReason.EARLY if early_due_ms is not None and now_ms >= early_due_ms else None

    def next_due_ms(self, now_ms: float) -> float | None:
        """When to ask `due` again if nothing arrives; None = only after an arrival."""
        if not self._submissions:
            return None
        early_due_ms = self._early_due_ms(now_ms)
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
        if reason is SealReason.EARLY:
            self._budget.spend(taken_bytes, now_ms)
        self._sealed(taken, now_ms)
        self._on_the_way += 1
        return taken

    def _sealed(self, taken: list[Submission], now_ms: float) -> None:
        left = {each.sender for _, each in self._submissions if each.sender is not None}
        for sender in {each.sender for each in taken if each.sender is not None} - left:
            sender.sealed(now_ms)
            self._blocked.discard(sender)
            # Its next request is not expected before its answer.
            self._awaited.pop(sender, None)

    def _forget_the_gone(self, now_ms: float) -> None:
        """Connections that were answered and sent nothing more, or ended, stand first."""
        while self._awaited:
            sender = next(iter(self._awaited))
            if sender in self._blocked or self._awaited[sender] > now_ms:
                return
            del self._awaited[sender]

    def _note(self, sender: Sender, now_ms: float) -> None:
        """A connection has sent: is it blocked, and may it send more?"""
        self._awaited.pop(sender, None)
        if not sender.is_blocked:
            self._blocked.discard(sender)
            return
        self._blocked.add(sender)
        complete_ms = sender.complete_ms(self._options.early_idle_ms)
        if complete_ms > now_ms:
            self._awaited[sender] = complete_ms

    def _linger_due_ms(self) -> float:
        return self._submissions[0][0] + self._options.linger_ms

    def _early_due_ms(self, now_ms: float) -> float | None:
        is_small = self.bytes < self._options.early_free_bytes
        if self._budget.is_off or (is_small and self._on_the_way >= EARLY_ON_THE_WAY_MAX):
            return None
        due_ms = self._silent_ms()
        if self._blocked:
            complete_ms = self._complete_ms(now_ms)
            due_ms = complete_ms if due_ms is None else min(due_ms, complete_ms)
        return None if due_ms is None else max(due_ms, self._budget.affordable_ms(self.bytes, now_ms))

    def _silent_ms(self) -> float | None:
        """When silence tells that all writers wait; None while too little is buffered for that."""
        if self.bytes < self._options.early_bytes:
            return None
        return self._last_arrival_ms + self._options.early_idle_ms

    def _complete_ms(self, now_ms: float) -> float:
        """When the blocked connections have sent what they can."""
        while self._awaited:
            # They stand in the order of their last bytes, so the last one mostly has the latest time.
            sender = next(reversed(self._awaited))
            if sender in self._blocked:
                self._awaited[sender] = max(self._awaited[sender], sender.complete_ms(self._options.early_idle_ms))
            if self._awaited[sender] > now_ms:
                return self._awaited[sender]
            del self._awaited[sender]
        return now_ms
