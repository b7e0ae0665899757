"""Injects faults by a plan, to see whether the layers above survive them. In the stack: right above the store, below
`Retrying` (see `storage/wrappers/wrapper.py`). For tests, the simulation and benchmarks; the product never builds one.

The plan alone decides, from the operation, the key, the number of the call and a random number; the store only carries
it out. A fault strikes before the operation, or after it was done. The latter is the lost answer, after which the
caller must not believe that nothing happened.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from runtime.clock import Clock
from runtime.ids import IdSource
from storage.objects import (
    Body,
    Deleted,
    MultipartUpload,
    ObjectStat,
    ObjectStore,
    ObjectStoreError,
    PutInDoubtError,
    StoreFullError,
    StoreUnavailableError,
)
from storage.wrappers.wrapper import WrappedStore

T = TypeVar("T")


class Fault(StrEnum):
    UNREACHABLE = "unreachable"
    """StoreUnavailableError, nothing done."""
    SLOW_DOWN = "slow down"
    """StoreUnavailableError as for S3's 503, nothing done."""
    LOST_REQUEST = "lost request"
    """A publishing call ends in doubt and was not done; others raise StoreUnavailableError."""
    LOST_ANSWER = "lost answer"
    """A publishing call ends in doubt and **was** done; others were done and raise StoreUnavailableError."""
    FULL = "full"
    """StoreFullError, nothing done."""
    DELAY = "delay"
    """Done, after `delay_ms`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRule:
    """The conditions under which `fault` strikes. All must hold; the first rule of a plan that strikes wins."""

    fault: Fault
    op: str = ""
    """get, get_range, put, head, delete, list, multipart_start, multipart_write, multipart_complete; "" = every
    operation."""
    key: str = ""
    """A regular expression to be found in the key (for delete: in any, for list: in the prefix)."""
    calls: frozenset[int] | None = None
    """The numbers of the calls, among those that match op and key, counted from 1; None = every call."""
    probability: float = 1.0
    delay_ms: float = 0

    def matches(self, op: str, keys: Sequence[str]) -> bool:
        return self.op in ("", op) and (not self.key or any(re.search(self.key, key) for key in keys))

    def strikes(self, call: int, draw: float) -> bool:
        """`call` counts the matching calls from 1; `draw` is in [0, 1)."""
        return (self.calls is None or call in self.calls) and draw < self.probability


@dataclass(slots=True)
class FaultPlan:
    rules: Sequence[FaultRule] = ()
    """May be replaced while the store is in use: a test ends the faults by `plan.rules = ()`."""
    _calls: dict[FaultRule, int] = field(default_factory=dict[FaultRule, int])

    def decide(self, op: str, keys: Sequence[str], draw: Callable[[], float]) -> FaultRule | None:
        struck: FaultRule | None = None
        for rule in self.rules:
            if rule.matches(op, keys):
                # Every matching rule counts the call, also behind one that struck: numbers in a test stay simple.
                self._calls[rule] = call = self._calls.get(rule, 0) + 1
                if struck is None and rule.strikes(call, draw()):
                    struck = rule
        return struck


class Faulty(WrappedStore):
    def __init__(self, inner: ObjectStore, plan: FaultPlan, ids: IdSource, clock: Clock) -> None:
        super().__init__(inner)
        self._plan = plan
        self._ids = ids
        self._clock = clock

    async def get(self, key: str) -> bytes:
        return await self.act("get", [key], lambda: self._inner.get(key))

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        return await self.act("get_range", [key], lambda: self._inner.get_range(key, start, length))

    async def put_if_absent(self, key: str, body: Body, *, crc32c: int) -> None:
        await self.act("put", [key], lambda: self._inner.put_if_absent(key, body, crc32c=crc32c), publishes=True)

    async def head(self, key: str) -> ObjectStat:
        return await self.act("head", [key], lambda: self._inner.head(key))

    async def delete_many(self, keys: Sequence[str]) -> Deleted:
        return await self.act("delete", keys, lambda: self._inner.delete_many(keys))

    async def list(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[ObjectStat]:
        """A fault strikes before the first key; LOST_ANSWER after the first."""
        rule = self._plan.decide("list", [prefix], self._ids.jitter)
        if rule is not None and rule.fault is Fault.DELAY:
            await self._clock.sleep_ms(rule.delay_ms)
        elif rule is not None and rule.fault is not Fault.LOST_ANSWER:
            raise _error(rule.fault, "list", publishes=False)
        async for stat in self._inner.list(prefix, start_after=start_after):
            yield stat
            if rule is not None and rule.fault is Fault.LOST_ANSWER:
                raise _error(rule.fault, "list", publishes=False)

    async def start_multipart(self, key: str) -> MultipartUpload:
        inner = await self.act("multipart_start", [key], lambda: self._inner.start_multipart(key))
        return FaultyMultipart(self, key, inner)

    async def act(
        self, op: str, keys: Sequence[str], call: Callable[[], Awaitable[T]], *, publishes: bool = False
    ) -> T:
        rule = self._plan.decide(op, keys, self._ids.jitter)
        if rule is None:
            return await call()
        if rule.fault is Fault.DELAY:
            await self._clock.sleep_ms(rule.delay_ms)
            return await call()
        if rule.fault is Fault.LOST_ANSWER:
            await call()
        raise _error(rule.fault, op, publishes=publishes)

    async def act_on_part(self, key: str, write: Callable[[], Awaitable[None]]) -> None:
        """The caller writes a part again under its number if its answer was lost, and the store forgets the first one.
        So LOST_ANSWER does not write the part at all.
        """
        rule = self._plan.decide("multipart_write", [key], self._ids.jitter)
        if rule is not None and rule.fault is not Fault.DELAY:
            raise _error(rule.fault, "multipart_write", publishes=False)
        if rule is not None:
            await self._clock.sleep_ms(rule.delay_ms)
        await write()


class FaultyMultipart:
    def __init__(self, store: Faulty, key: str, inner: MultipartUpload) -> None:
        self._store = store
        self._key = key
        self._inner = inner

    async def write(self, part: Body) -> None:
        await self._store.act_on_part(self._key, lambda: self._inner.write(part))

    async def complete(self) -> None:
        await self._store.act("multipart_complete", [self._key], self._inner.complete, publishes=True)

    async def abort(self) -> None:
        await self._inner.abort()


def _error(fault: Fault, op: str, *, publishes: bool) -> ObjectStoreError:
    said = f"injected: {fault} ({op})"
    if fault is Fault.FULL:
        return StoreFullError(said)
    if publishes and fault in (Fault.LOST_REQUEST, Fault.LOST_ANSWER):
        return PutInDoubtError(said)
    return StoreUnavailableError(said)
