"""Consumers of one partition: what they make of batches, and of the list of aborted transactions beside them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from tests.compaction.transactions.ledger import Listed
from wire.batch import read_header
from wire.records import walk

Deliver = Callable[[Sequence[bytes], Sequence[Listed]], list[bytes]]
"""From the batches of an answer and its list to the data batches that an application sees."""


def _ends_aborted(batch: bytes) -> bool:
    if not read_header(batch).records_count:
        return False
    key = next(iter(walk(memoryview(batch)))).key
    return key is not None and int.from_bytes(bytes(key[2:4]), "big") == 0


def by_librdkafka(batches: Sequence[bytes], listed: Sequence[Listed]) -> list[bytes]:
    """librdkafka (`rdkafka_msgset_reader.c`) and franz-go (`aborter`): a list of first offsets for each producer, from
    which every ABORT marker takes one."""
    firsts: defaultdict[int, list[int]] = defaultdict(list)
    for producer_id, first, _ in listed:
        firsts[producer_id].append(first)
    seen: list[bytes] = []
    for batch in batches:
        header = read_header(batch)
        mine = firsts[header.producer_id]
        if header.is_control:
            if mine and mine[0] <= header.base_offset and _ends_aborted(batch):
                mine.pop(0)
        elif not (header.is_transactional and mine and header.base_offset >= mine[0]):
            seen.append(batch)
    return seen


def by_java(batches: Sequence[bytes], listed: Sequence[Listed]) -> list[bytes]:
    """Java (`CompletedFetch`): a queue by first offset, and a set of producers that an ABORT marker leaves."""
    waiting, aborted = sorted(listed, key=lambda one: one[1]), set[int]()
    seen: list[bytes] = []
    for batch in batches:
        header = read_header(batch)
        while waiting and waiting[0][1] <= header.last_offset:
            aborted.add(waiting.pop(0)[0])
        if header.is_control:
            if _ends_aborted(batch):
                aborted.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in aborted):
            seen.append(batch)
    return seen


CLIENTS: dict[str, Deliver] = {"librdkafka": by_librdkafka, "java": by_java}


def answered(listed: Iterable[Listed], batches: Sequence[bytes], fetch_offset: int) -> list[Listed]:
    """The list of an answer with these batches: by first offset, without doubles."""
    end = read_header(batches[-1]).next_offset
    return sorted({one for one in listed if one[2] >= fetch_offset and one[1] < end}, key=lambda one: one[1])
