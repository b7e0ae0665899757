"""The agents' second requests (`storage/wrappers/hedged.py`), watched from outside: their number, and who wins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

from runtime.clock import Clock
from runtime.metrics import Metrics
from storage.objects import Body, ObjectStore
from storage.wrappers import hedge_rule
from storage.wrappers.hedged import Hedged
from storage.wrappers.wrapper import WrappedStore
from tests.simulation.faults import Faults, Kind, Path

SHARE = 0.2
_PATHS: dict[tuple[str, str], Kind] = {
    ("get_range", "won"): Path.GET_HEDGE_WON,
    ("get_range", "lost"): Path.GET_HEDGE_LOST,
    ("get_range", "refused"): Path.GET_HEDGE_REFUSED,
    ("put", "won"): Path.PUT_HEDGED,
    ("put", "lost"): Path.PUT_HEDGED,
    ("put", "failed"): Path.PUT_HEDGED,
}


@contextmanager
def figures_of_a_short_run() -> Iterator[None]:
    """An agent here sends tens of requests, not thousands: it knows sooner what is late, and may send more of them."""
    with patch.multiple(hedge_rule, SAMPLES_MIN=5, REFRESH=2, QUANTILE=0.7, SHARE=SHARE):
        yield


class Outcomes:
    """Replaces the counter of second requests: keeps the books."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._kind: Kind | None = None

    def labels(self, *, op: str, outcome: str) -> Outcomes:
        self._kind = _PATHS.get((op, outcome))
        return self

    def inc(self) -> None:
        if self._kind is not None:
            self._faults.count(self._kind)


class WatchedHedged(Hedged):
    """The product's own class; second requests above their share are a violation."""

    def __init__(
        self, inner: ObjectStore, metrics: Metrics, clock: Clock, *, on_violation: Callable[[str], None]
    ) -> None:
        self._asked: Counter[str] = Counter()
        super().__init__(_Sent(inner, self._asked, on_violation), metrics, clock)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        self._asked["GET"] += 1
        return await super().get_range(key, start, length)

    async def put_if_absent(self, key: str, body: Body, *, crc32c: int) -> None:
        self._asked["PUT"] += 1
        await super().put_if_absent(key, body, crc32c=crc32c)


class _Sent(WrappedStore):
    """Counts the requests below the hedge."""

    def __init__(self, inner: ObjectStore, asked: Counter[str], on_violation: Callable[[str], None]) -> None:
        super().__init__(inner)
        self._asked = asked
        self._sent: Counter[str] = Counter()
        self._on_violation = on_violation

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        self._count("GET")
        return await super().get_range(key, start, length)

    async def put_if_absent(self, key: str, body: Body, *, crc32c: int) -> None:
        self._count("PUT")
        await super().put_if_absent(key, body, crc32c=crc32c)

    def _count(self, what: str) -> None:
        self._sent[what] += 1
        asked, sent = self._asked[what], self._sent[what]
        if sent - asked > SHARE * asked:
            self._on_violation(f"{sent} requests were sent for {asked} {what}s")
