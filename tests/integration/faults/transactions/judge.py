"""The judge of a history of transactions: what of it no log with transactions may show. Pure.

The truth is the log at the end, in which the markers say what is committed. Nothing is asked of the order in which
transactions of several partitions become visible: Kafka promises none.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from graphlib import CycleError, TopologicalSorter
from math import inf
from typing import NamedTuple

from tests.integration.faults.transactions.history import Kept, Log, Position, Transaction, View, name_of


class Kind(StrEnum):
    ABORTED_READ = "a record that is not committed was read as committed"
    EARLY_READ = "a record was read as committed before its client asked for the commit"
    CHANGED = "a record was read that does not lie there any more"
    MISSED = "a reader passed over a record"
    DISORDER = "a reader was shown a record twice, or late"
    TORN = "a part of a transaction is committed"
    WRONG_END = "a transaction is committed that nobody asked to commit"
    LOST = "a record of a transaction that was acknowledged as committed is not committed"
    DOUBLED = "a record lies in the log twice"
    MOVED = "a record does not lie where it was acknowledged"
    STRANGE = "a record that nobody sent, or sent elsewhere"
    CYCLE = "transactions read from each other in a circle"
    NOT_MOVED_ON = "offsets are committed of a record that has no output"
    MOVED_TWICE = "a record has more outputs than one"
    MOVED_EARLY = "a record has an output, and the offsets behind it are not committed"
    OPEN = "a record of a transaction has no end"
    STUCK = "readers of committed records do not reach the end"


class Violation(NamedTuple):
    kind: Kind
    what: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.what}"


def violations(transactions: Mapping[str, Transaction], views: Sequence[View], log: Log) -> list[Violation]:
    """All of them; none of a good history."""
    return [
        *_of_views(transactions, views, log),
        *_of_records(transactions, log),
        *_of_transactions(transactions, log),
        *_of_cycles(transactions, log),
        *_of_moves(log),
        *_of_ends(log),
    ]


def _of_views(transactions: Mapping[str, Transaction], views: Sequence[View], log: Log) -> Iterator[Violation]:
    for view in views:
        who = f"{view.reader} of {view.place}"
        truth = log.committed(view.place) if view.committed else log.everything(view.place)
        shown = [each.offset for each in view.seen]
        if sorted(set(shown)) != shown:
            wrong = next(at for at, after in itertools.pairwise(shown) if after <= at)
            yield Violation(Kind.DISORDER, f"{who}: behind {wrong}")
        for each in view.seen:
            if truth.get(each.offset) != each.value:
                there = log.kept.get(view.place, {}).get(each.offset)
                kind = Kind.ABORTED_READ if view.committed else Kind.CHANGED
                yield Violation(kind, f"{who}: {each.value!r} at {each.offset}, where {there} lies")
                continue
            transaction = transactions.get(name_of(each.value).transaction)
            asked_s = inf if transaction is None else transaction.asked_s
            if view.committed and each.at_s < asked_s:
                yield Violation(Kind.EARLY_READ, f"{who}: {each.value!r} at {each.offset}, {asked_s - each.at_s} s")
        missed = sorted({at for at in truth if view.start <= at < view.end} - set(shown))
        for at in missed:
            yield Violation(Kind.MISSED, f"{who} came to {view.end} without {truth[at]!r} at {at}")


def _of_records(transactions: Mapping[str, Transaction], log: Log) -> Iterator[Violation]:
    times: Counter[bytes] = Counter()
    for place, kept in log.kept.items():
        for offset, each in kept.items():
            times[each.value] += 1
            transaction = transactions.get(name_of(each.value).transaction)
            if transaction is None or transaction.sent.get(each.value) != place:
                yield Violation(Kind.STRANGE, f"{each.value!r} at {place} {offset}")
            if each.is_committed is None:
                yield Violation(Kind.OPEN, f"{each.value!r} at {place} {offset}")
    for value, count in times.items():
        if count > 1:
            yield Violation(Kind.DOUBLED, f"{value!r}, {count} times")
    for transaction in transactions.values():
        for value, offset in transaction.offsets.items():
            place = transaction.sent[value]
            there = log.kept.get(place, {}).get(offset)
            if there is None or there.value != value:
                yield Violation(Kind.MOVED, f"{value!r} was acknowledged at {place} {offset}, where {there} lies")


def _of_transactions(transactions: Mapping[str, Transaction], log: Log) -> Iterator[Violation]:
    kept: dict[str, set[bytes]] = defaultdict(set)
    for place in log.kept:
        for value in log.committed(place).values():
            kept[name_of(value).transaction].add(value)
    for name, transaction in transactions.items():
        committed, sent = kept[name], transaction.sent.keys()
        missing = sorted(sent - committed)
        if transaction.is_committed and missing:
            yield Violation(
                Kind.LOST, f"{missing[0]!r} for {transaction.sent[missing[0]]}, and {len(missing) - 1} more"
            )
        if committed and transaction.asked_s == inf:
            yield Violation(Kind.WRONG_END, f"{name}, {len(committed)} records")
        # Clients ask for the commit when all records are acknowledged.
        if committed and missing:
            yield Violation(Kind.TORN, f"{name}: {len(committed)} records of {len(sent)}, without {missing[0]!r}")


def _of_cycles(transactions: Mapping[str, Transaction], log: Log) -> Iterator[Violation]:
    """An edge goes from the transaction that wrote a record to one that read it."""
    graph: dict[str, set[str]] = {}
    for name, transaction in transactions.items():
        read = (log.kept.get(each.place, {}).get(each.offset) for each in transaction.read)
        graph[name] = {name_of(each.value).transaction for each in read if each is not None}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        yield Violation(Kind.CYCLE, " -> ".join(error.args[1]))


def _of_moves(log: Log) -> Iterator[Violation]:
    """Offsets and outputs are in one transaction: a record has one output if and only if the group has passed it."""
    outputs: dict[Position, list[bytes]] = defaultdict(list)
    for place in log.kept:
        for value in log.committed(place).values():
            if (source := name_of(value).source) is not None:
                outputs[source].append(value)
    for place in log.kept:
        for offset, value in log.committed(place).items():
            found = outputs.pop(Position(place, offset), [])
            has_output, is_behind = name_of(value).hops > 0, offset < log.moved.get(place, 0)
            what = f"{value!r} at {place} {offset} became {found}"
            if len(found) > 1:
                yield Violation(Kind.MOVED_TWICE, what)
            if is_behind and has_output and not found:
                yield Violation(Kind.NOT_MOVED_ON, f"{what}; the group is at {log.moved[place]}")
            if found and not is_behind:
                yield Violation(Kind.MOVED_EARLY, f"{what}; the group is at {log.moved.get(place, 0)}")
    for source, values in outputs.items():
        yield Violation(Kind.ABORTED_READ, f"{values} were made of {source}, where no committed record lies")


def _of_ends(log: Log) -> Iterator[Violation]:
    for (agent, place), bounds in log.bounds.items():
        if bounds.stable != bounds.end:
            yield Violation(Kind.STUCK, f"{agent} says of {place}: stable to {bounds.stable}, end {bounds.end}")


def outcome_of(kept: Mapping[int, Kept]) -> str:
    """For a line about a run."""
    counts = Counter(each.is_committed for each in kept.values())
    return f"{counts[True]} committed, {counts[False]} aborted, {counts[None]} open"
