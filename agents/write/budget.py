"""How many early seals an agent may pay for: a bucket of tokens. Pure: the time is an argument.

The bucket fills at `per_second` and is full when the agent starts. A file costs one token, less the share of
`free_bytes` that it carries: a file of `free_bytes` or more costs nothing. So in any time there are at most so many
early seals as the bucket holds, plus the rate times the time, plus one for each `free_bytes` carried.

`share` lowers the rate while merges lag behind, since every file is one more for them: see `share_of`.
"""

from __future__ import annotations

PRICED_PER_SECOND = 20
"""On a store with a price per request: $260 a month at $0.005 per 1,000 PUTs, if an agent spends them all."""
LOCAL_PER_SECOND = 250
"""On a local store nothing is paid, but each file is rows in Postgres and work for the compactor."""
BY_THE_STORE = -1
TOKENS_MAX = 600
"""Half a minute of PRICED_PER_SECOND: a short job after a quiet time is not slowed down; a day's bill is the same."""


def early_per_second(setting: int, store_url: str) -> int:
    """The rate that `produce.early.per.second` means on this store."""
    if setting != BY_THE_STORE:
        return setting
    return PRICED_PER_SECOND if store_url.startswith("s3:") else LOCAL_PER_SECOND


def share_of(live_files: int, stall_files: int) -> float:
    """The share of the rate that is left at this many live L0 files: all up to half of `stall_files`, none above it.

    0 for `stall_files` switches the write stall off, and this with it.
    """
    if not stall_files:
        return 1.0
    return min(max(2 - 2 * live_files / stall_files, 0.0), 1.0)


class EarlyBudget:
    def __init__(self, *, per_second: float, free_bytes: int, tokens_max: float = TOKENS_MAX) -> None:
        """`per_second` 0: no file is sealed early, whatever its size."""
        self._per_second = per_second
        self._free_bytes = free_bytes
        self._share = 1.0
        self._tokens = self._tokens_max = tokens_max
        self._counted_ms = 0.0

    @property
    def rate(self) -> float:
        """Tokens that come in a second now."""
        return self._per_second * self._share

    @property
    def is_off(self) -> bool:
        return self.rate <= 0

    def tokens(self, now_ms: float) -> float:
        self._count(now_ms)
        return self._tokens

    def set_share(self, share: float, now_ms: float) -> None:
        self._count(now_ms)
        self._share = share

    def affordable_ms(self, file_bytes: int, now_ms: float) -> float:
        """When a file of this size can be paid for; ask only while the budget is not off."""
        self._count(now_ms)
        missing = self._price(file_bytes) - self._tokens
        return now_ms if missing <= 0 else now_ms + missing / self.rate * 1000

    def spend(self, file_bytes: int, now_ms: float) -> None:
        self._count(now_ms)
        self._tokens -= self._price(file_bytes)

    def _price(self, file_bytes: int) -> float:
        return max(1 - file_bytes / self._free_bytes, 0.0)

    def _count(self, now_ms: float) -> None:
        self._tokens = min(self._tokens + self.rate * (now_ms - self._counted_ms) / 1000, self._tokens_max)
        self._counted_ms = now_ms
