"""Holds clients to their quotas, as Kafka does, super users too. Each agent measures by itself; of a limit that the
agents share it grants its part alone (`agents/quotas/sharing.py`).

Nobody is refused for bytes or for time. What a client takes counts, and if that is more than it may, the connection
that took it is not read until its share is even again: all answers on it say so (`throttle_time_ms`), and leave at once
(KIP-219). Records are counted when they come and always taken in; the bytes of a fetch when they are answered. A client
that is over its quota already gets an empty answer, before anything is read for it.

Changes of topics and new producer ids last, so those over the quota are refused: the former where the client's version
knows the error (KIP-599), the latter with an error after which clients ask again. New connections of an address over
its quota are closed at once; Kafka closes them after a delay. A closed one holds no place that others need.

While no quota is set, `on` is False, and a request costs a few tests of it. Clients choose their ids, but what is kept
of them is bounded (`security.quotas.bucket`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary

from agents.quotas.meter import Meter
from agents.quotas.mute import Mute
from agents.request_context import RequestContext, current_request
from agents.topics.rules import RequestError
from runtime.runtime import Runtime
from security.quotas.bucket import BURST_S, Bucket, Buckets
from security.quotas.precedence import NO_QUOTAS, Limit, QuotaTable
from security.quotas.sharing import PER_AGENT
from security.quotas.values import QuotaEntity, QuotaKey
from wire.api import RequestHeader, encode_short_response
from wire.error_codes import ErrorCode
from wire.schema import Message, Octets

_PRODUCE, _FETCH = 0, 1
_STRICT_SINCE: Final[Mapping[int, int]] = {19: 6, 20: 5, 37: 3}
"""The versions of CreateTopics, DeleteTopics and CreatePartitions whose clients know THROTTLING_QUOTA_EXCEEDED."""
MUTE_MS_MAX = BURST_S * 1000.0
"""Requests that wait behind a longer one would be taken for lost: clients give up after 30 s."""
REQUEST_MUTE_MS_MAX = 1_000.0
"""Kafka's: the length of one window."""
MS_PER_PERCENT = 10.0
"""Milliseconds of the loop in one percent of a second."""
_LASTING: Final = (QuotaKey.CONTROLLER_MUTATION_RATE, QuotaKey.PRODUCER_ID_RATE)
"""A debt of these is owed in full: one large topic must not cost as little as ten seconds of small ones."""


class KnownQuotas(Protocol):
    """The quotas of the store, as this agent has heard of them (`agents/security/known.py`)."""

    on_quotas: list[Callable[[], None]]

    @property
    def quotas(self) -> Mapping[QuotaEntity, Mapping[str, float]]: ...


class Throttle:
    def __init__(self, known: KnownQuotas, runtime: Runtime, *, shares: bool = False) -> None:
        """`shares`: the agents of the cluster share each limit, but those of PER_AGENT."""
        self.on = False
        """A user or client has a quota."""
        self.binds_addresses = False
        """An address has a quota."""
        self._known = known
        self._clock = runtime.clock
        self._table = NO_QUOTAS
        self.shared: Sequence[QuotaKey] = [key for key in QuotaKey if shares and key not in PER_AGENT]
        self.buckets: Mapping[QuotaKey, Buckets] = {
            key: Buckets(math.inf if key in _LASTING else BURST_S, counts_demand=key in self.shared) for key in QuotaKey
        }
        self._muted: WeakKeyDictionary[Mute, dict[Bucket, float]] = WeakKeyDictionary()
        """For each the buckets that were overdrawn, with the longest wait for one."""
        self._waits = {
            key: runtime.metrics.throttle_seconds.labels(quota=key.value)
            for key in QuotaKey
            if key is not QuotaKey.CONNECTION_CREATION_RATE
        }
        known.on_quotas.append(self._changed)
        self._changed()

    # ---- called by connections

    def handle(self, handle: Callable[..., Any], broker: Any, context: RequestContext, request: Message) -> Any:
        """Begin a request by its handler."""
        if context.header.api_key == _PRODUCE:
            self._charge(QuotaKey.PRODUCER_BYTE_RATE, context, context.request_bytes)
        if QuotaKey.REQUEST_PERCENTAGE not in self._table.keys:
            return handle(broker, context.header, request)
        meter = context.meter = Meter(self._clock)
        return meter.call(lambda: handle(broker, context.header, request))

    def encode(self, context: RequestContext, answer: Message | None) -> Sequence[Octets] | None:
        """The bytes of an answer, which tells the client how long it will not be read. None: it is a long one, and
        nothing is charged for it yet."""
        parts: Sequence[Octets] | None = ()
        if answer is not None:
            began_ms = self._clock.monotonic_ms()
            parts = encode_short_response(context.header, answer)
            if context.meter is not None:
                context.meter.spent_ms += self._clock.monotonic_ms() - began_ms
        if parts is not None and self.tells(context, answer, parts) and answer is not None:
            # Again: it was not known before how large the answer is. Records are not copied.
            return encode_short_response(context.header, answer)
        return parts

    def tells(self, context: RequestContext, answer: Message | None, parts: Sequence[Octets]) -> bool:
        """Charge for an answer of these bytes. True: the client has to wait, and the answer says so now."""
        if context.header.api_key == _FETCH:
            self._charge(QuotaKey.CONSUMER_BYTE_RATE, context, sum(map(len, parts)))
        if context.meter is not None:
            spent = context.meter.spent_ms / MS_PER_PERCENT
            self._charge(QuotaKey.REQUEST_PERCENTAGE, context, spent, mute_ms_max=REQUEST_MUTE_MS_MAX)
        if answer is None or not (left_ms := context.client.mute.left_ms()) or not hasattr(answer, "throttle_time_ms"):
            return False
        answer.throttle_time_ms = left_ms  # pyright: ignore[reportAttributeAccessIssue]
        return True

    # ---- called by handlers

    def fetch_bytes_max(self) -> float:
        """The most that a fetch may answer; 0: nothing, the client is over its quota."""
        if not self.on or (context := current_request()) is None:
            return math.inf
        limit = self._limit(QuotaKey.CONSUMER_BYTE_RATE, context)
        if limit is None:
            return math.inf
        if self._take(QuotaKey.CONSUMER_BYTE_RATE, limit, context, 0, MUTE_MS_MAX):
            return 0
        bucket = self.buckets[QuotaKey.CONSUMER_BYTE_RATE].of(limit.share)
        return max(1.0, limit.per_second * bucket.part * BURST_S)

    def count_mutation(self, header: RequestHeader, partitions: int) -> None:
        """Before a change of that many partitions. Raises RequestError(THROTTLING_QUOTA_EXCEEDED)."""
        if not self.on or (context := current_request()) is None:
            return
        key = QuotaKey.CONTROLLER_MUTATION_RATE
        strict = header.api_version >= _STRICT_SINCE.get(header.api_key, math.inf)
        if strict and self._charge(key, context, 0):
            raise RequestError(
                ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                f"the quota {key} of user {context.client.user!r} and client {context.header.client_id!r} is used up;"
                " try again later",
            )
        # Never refused for what it is about to take: the first change is always made.
        self._charge(key, context, partitions, told=not strict)

    def may_create(self, partitions: int) -> bool:
        """Whether a topic may be created on the way, by a request for its metadata."""
        if not self.on or (context := current_request()) is None:
            return True
        if self._charge(QuotaKey.CONTROLLER_MUTATION_RATE, context, 0):
            return False
        self._charge(QuotaKey.CONTROLLER_MUTATION_RATE, context, partitions, told=False)
        return True

    def may_take_producer_id(self) -> bool:
        if not self.on or (context := current_request()) is None:
            return True
        if self._charge(QuotaKey.PRODUCER_ID_RATE, context, 0):
            return False
        self._charge(QuotaKey.PRODUCER_ID_RATE, context, 1, told=False)
        return True

    # ---- called by the server

    def admits(self, host: str) -> bool:
        """Whether a new connection from this address may stay."""
        limit = self._table.connections_per_second(host)
        if limit is None:
            return True
        buckets, now_ms = self.buckets[QuotaKey.CONNECTION_CREATION_RATE], self._clock.monotonic_ms()
        if buckets.take(limit, 0, now_ms) > 0:
            return False
        buckets.take(limit, 1, now_ms)
        return True

    # ---- called by those who share

    @property
    def shares_now(self) -> bool:
        """There are limits to share."""
        return any(key in self._table.keys for key in self.shared) or (bool(self.shared) and self.binds_addresses)

    def ease(self) -> None:
        """Parts of limits have changed: nobody waits longer than its buckets do now."""
        now_ms = self._clock.monotonic_ms()
        for mute, overdrawn in list(self._muted.items()):
            if mute.on:
                mute.shorten(max(min(bucket.wait_ms(now_ms), most) for bucket, most in overdrawn.items()))
            if not mute.on:
                self._muted.pop(mute, None)

    # ---- inside

    def _changed(self) -> None:
        self._table = QuotaTable(self._known.quotas)
        self.on = bool(self._table.keys)
        self.binds_addresses = self._table.binds_addresses
        # By the old quotas. Whoever is over the new ones waits again, from its next request on.
        muted = list(self._muted)
        self._muted.clear()
        for mute in muted:
            mute.end()

    def _limit(self, key: QuotaKey, context: RequestContext) -> Limit | None:
        return self._table.limit(key, context.client.user, context.header.client_id or "")

    def _charge(
        self,
        key: QuotaKey,
        context: RequestContext,
        amount: float,
        *,
        told: bool = True,
        mute_ms_max: float = MUTE_MS_MAX,
    ) -> float:
        """The ms that the client waits for it. `told`: it does, from now on."""
        limit = self._limit(key, context)
        if limit is None:
            return 0.0
        if told:
            return self._take(key, limit, context, amount, mute_ms_max)
        return self.buckets[key].take(limit, amount, self._clock.monotonic_ms())

    def _take(self, key: QuotaKey, limit: Limit, context: RequestContext, amount: float, mute_ms_max: float) -> float:
        buckets = self.buckets[key]
        wait_ms = min(buckets.take(limit, amount, self._clock.monotonic_ms()), mute_ms_max)
        if wait_ms > 0:
            self._waits[key].observe(wait_ms / 1000)
            mute = context.client.mute
            mute.hold(wait_ms, self._clock)
            if mute.on:
                self._muted.setdefault(mute, {})[buckets.of(limit.share)] = mute_ms_max
        return wait_ms
