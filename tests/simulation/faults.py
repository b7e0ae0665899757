"""The faults of a run, their rates, and the books: every fault that fired and every in-doubt path that was taken.

Each seed draws the faults that it has at all and their rates ("swarm testing"): a run in which everything goes wrong at
once rarely gets as far as the rare orders of events. `tests/simulation/README.md` explains how to read the counts.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from tests.simulation.transactions.orders import Order


class Fault(StrEnum):
    METADATA_ANSWER_LOST = "metadata: done, answer lost"
    METADATA_CALL_LOST = "metadata: call lost"
    METADATA_LATE = "metadata: told lost, done later"
    METADATA_SLOW = "metadata: seconds late"
    METADATA_DOWN = "metadata: away"
    HINT_LOST = "metadata: hint lost"
    ROWS_FORGOTTEN = "metadata: change rows forgotten"
    PUT_ANSWER_LOST = "store: PUT stored, answer lost"
    PUT_CALL_LOST = "store: PUT lost"
    PUT_LATE = "store: PUT told lost, stored later"
    PUT_REFUSED = "store: PUT answered 503"
    PUT_SLOW = "store: PUT seconds late"
    GET_FAILED = "store: GET failed"
    HEAD_FAILED = "store: HEAD failed"
    GET_SLOW = "store: GET many times later than most"
    STORE_DOWN = "store: away"
    SECOND_GET_FAILED = "second store: GET failed"
    SECOND_PUT_REFUSED = "second store: PUT answered 503"
    SECOND_DOWN = "second store: away"
    ROLLED_READS = "agent rolled: reads a second store, writes to the first"
    ROLLED_WRITES = "agent rolled: writes to a second store"
    CUT_BEFORE = "line cut before the request"
    CUT_AFTER = "line cut after the request"
    DUPLICATED = "produce request sent twice"
    CRASH = "agent killed at an await"
    FREEZE = "agent asleep for less than its lease"
    FREEZE_PAST_LEASE = "agent asleep for longer than its lease"
    ASLEEP_BEFORE_COMMIT = "agent asleep between PUT and commit"
    TWIN = "agent replaced while asleep, then awake"
    DRAIN = "agent told to stop, and started again"
    KEY_ABORTED = "janitor: key aborted"
    ORPHAN_DELETED = "janitor: object of an aborted key deleted"
    DEAD_FILE_DELETED = "janitor: file of deleted topics deleted"
    CUT_OFF = "agent without the metadata for less than its lease"
    CUT_OFF_PAST_LEASE = "agent without the metadata for longer than its lease"
    TOPIC_DELETED = "topic deleted under load"
    TOPIC_CREATED = "topic made again under load"


class Path(StrEnum):
    COMMIT_WAS_DONE = "commit in doubt, had been done: the repeat answers the same"
    COMMIT_WAS_LOST = "commit in doubt, had been lost: the repeat does it"
    COMMIT_UNREACHED = "commit that did not reach the metadata, repeated"
    DOUBT_UNREACHED = "commit in doubt, and its repeat did not reach the metadata"
    COMMIT_CAME_LATE = "the lost try of a commit arrives after its repeat"
    PUT_WAS_STORED = "PUT in doubt, settled by HEAD as stored"
    PUT_WAS_ABSENT = "PUT in doubt, settled by HEAD as absent"
    PUT_GIVEN_UP = "file given up, its PUT failed to the deadline"
    WRITER_FENCED = "commit of an older epoch refused"
    ABORTED_KEY_REFUSED = "commit of an aborted key refused"
    ABORT_REFUSED = "abort of a committed key refused"
    DUPLICATE_ANSWERED = "retry answered with the original's offset"
    DUPLICATE_IN_FILE = "retry and original in one file"
    OUT_OF_ORDER_REFUSED = "sequence out of order refused"
    PARTITION_GONE = "batch of a deleted partition refused"
    PRODUCE_TIMED_OUT = "produce answered REQUEST_TIMED_OUT"
    PRODUCER_SENT_AWAY = "produce refused by an agent that stops"
    READER_SENT_AWAY = "fetch refused by an agent that stops"
    GAP_WAITED = "follower waited at a gap"
    READER_AHEAD = "consumer ahead of the agent it came to"
    OUT_OF_RANGE = "offset out of range, by a fresh read of the watermarks"
    FOUND_BY_TIME = "offset found by timestamp"
    STARTED_COLD = "follower started cold from a snapshot"
    READ_FROM_STORE = "records read from the object store"
    READ_FAILED = "one partition answered KAFKA_STORAGE_ERROR to a fetch"
    ZONE_SERVED = "blocks served by a neighbour"
    ZONE_LATE = "a neighbour was late: blocks read from the object store"
    ZONE_FAILED = "a neighbour failed: blocks read from the object store"
    WRITING_PAUSED = "answers waited for a slow reader"
    PUT_IN_SECOND = "file stored in the second store"
    LOOKED_IN_FIRST = "records not in the second store, asked of the first"
    DELETED_IN_SECOND = "object deleted in the second store"
    START_BESIDE_TWIN = "agent did not start: another process runs at its address"
    HALTED_BESIDE_TWIN = "agent halted: another process took its address while it slept"
    START_REFUSED = "agent that knows of one store refused to start"
    GET_HEDGE_WON = "second GET answered first"
    GET_HEDGE_LOST = "second GET sent, the first answered first"
    GET_HEDGE_REFUSED = "late GET without a second one, by the bound"
    PUT_HEDGED = "second PUT sent"
    SEALED_EARLY = "file sealed early"
    TRICKLE_WAITED = "file of trickles alone, held for the linger"
    BUDGET_SPENT = "early seals came to the bound of their budget"
    STALL_ENDED_EARLY = "file held for the linger, by the write stall"
    ACLS_CREATED = "ACLs created under load"
    ACLS_DELETED = "ACLs deleted under load"
    ACLS_IN_DOUBT = "change of ACLs without an answer, asked for again"
    GUEST_LET_THROUGH = "client with changing rights let through"
    GUEST_DENIED = "client with changing rights denied"
    BLOCKED_WENT_ON = "producer with a full window was not held up by the linger"


Kind: TypeAlias = Fault | Path | Order

_RATES: dict[Fault, tuple[float, float]] = {
    # (the probability that a seed has it, the highest rate per chance)
    Fault.METADATA_ANSWER_LOST: (0.5, 0.12),
    Fault.METADATA_CALL_LOST: (0.5, 0.12),
    Fault.METADATA_LATE: (0.4, 0.10),
    Fault.METADATA_SLOW: (0.4, 0.03),
    Fault.HINT_LOST: (0.6, 1.0),
    Fault.PUT_ANSWER_LOST: (0.5, 0.3),
    Fault.PUT_CALL_LOST: (0.4, 0.3),
    Fault.PUT_LATE: (0.4, 0.3),
    Fault.PUT_REFUSED: (0.5, 0.9),
    Fault.PUT_SLOW: (0.4, 0.2),
    Fault.GET_FAILED: (0.5, 0.95),
    Fault.HEAD_FAILED: (0.5, 0.5),
    Fault.CUT_BEFORE: (0.5, 0.08),
    Fault.CUT_AFTER: (0.5, 0.08),
    Fault.DUPLICATED: (0.6, 0.5),
    Fault.ASLEEP_BEFORE_COMMIT: (0.4, 0.25),
    Fault.GET_SLOW: (0.5, 0.4),
    Fault.SECOND_GET_FAILED: (0.5, 0.8),
    Fault.SECOND_PUT_REFUSED: (0.5, 0.5),
}


@dataclass(frozen=True, slots=True)
class StoreFaults:
    """The faults that each store has for itself."""

    down: Fault
    put_refused: Fault
    get_failed: Fault


FIRST_STORE = StoreFaults(Fault.STORE_DOWN, Fault.PUT_REFUSED, Fault.GET_FAILED)
SECOND_STORE = StoreFaults(Fault.SECOND_DOWN, Fault.SECOND_PUT_REFUSED, Fault.SECOND_GET_FAILED)


class Faults:
    """The plan of one run and its books. Everything is drawn from `rng`; after `heal` no fault fires any more."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.counts: Counter[Kind] = Counter()
        self.are_over = False
        self.are_held_back = False
        """No other fault strikes, for the sake of a rare one."""
        self._rates = {
            fault: self.rng.random() * highest
            for fault, (likely, highest) in _RATES.items()
            if self.rng.random() < likely
        }
        self._away_until_ms: dict[Fault, float] = {}

    def strikes(self, fault: Fault, weight: float = 1.0) -> bool:
        rate = self._rates.get(fault)
        if rate is None or self.are_over or self.are_held_back or self.rng.random() >= rate * weight:
            return False
        self.counts[fault] += 1
        return True

    def take_away(self, fault: Fault, until_ms: float) -> None:
        """METADATA_DOWN, STORE_DOWN or SECOND_DOWN, for a while."""
        self._away_until_ms[fault] = until_ms

    def is_away(self, fault: Fault, now_ms: float) -> bool:
        if self.are_over or now_ms >= self._away_until_ms.get(fault, 0):
            return False
        self.counts[fault] += 1
        return True

    def count(self, kind: Kind) -> None:
        self.counts[kind] += 1

    def heal(self) -> None:
        self.are_over = True

    def between(self, low: float, high: float) -> float:
        return low + (high - low) * self.rng.random()


def all_kinds() -> tuple[Kind, ...]:
    return (*Fault, *Path)


def never(counts: Counter[str]) -> list[str]:
    """The faults and paths that never happened."""
    return [str(kind) for kind in all_kinds() if not counts[kind]]


def table(counts: Counter[str]) -> str:
    """One line per fault and path, with its count."""

    def lines(title: str, kinds: Iterable[Kind]) -> list[str]:
        return [title, *(f"  {counts[kind]:>9,}  {kind}" for kind in kinds)]

    return "\n".join(
        [
            *lines("faults that fired", Fault),
            *lines("paths that were taken", Path),
            *lines("orders of transactions", Order),
        ]
    )
