"""The keys of a compacted topic at an agent: find the newest record of each, and write tombstones.

Producers may write a key at the same time. Without `--before` that does not matter: everything below the tombstone
goes. With it, values that are written from now on are meant to stay, and a tombstone must not hide one. So each
tombstone is followed by a look at the records between the last look and itself. A value of the key that is found there
is written again, behind the tombstone, and the look repeats, for the producer may have gone on.

Records of aborted transactions are no newest records. What an open transaction wrote is not known yet. Without
`--before` that does not matter either: such a key gets a tombstone, and its records below go however the transaction
ends. With it, the end must be known, so a look waits for the transactions that are open when it begins.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import aclosing

from runtime.clock import Clock
from runtime.errors import SiltstoneError
from siltstone.kafka.client import KafkaClient
from siltstone.kafka.consuming import Reach, reaches, read
from siltstone.kafka.offset_spec import Anchor, OffsetRange, Place
from siltstone.kafka.producing import ProduceOptions, Refused, Stored, TopicWriter, WriteResults
from siltstone.kafka.record_format import InputRecord, OutputRecord, shown_bytes
from siltstone.kafka.records import Isolation, TopicPartition
from siltstone.kafka.retrying import RetryingClient
from siltstone.ops.erasure.request import Newest, PartitionKey
from wire.codecs import Codec

ROUNDS_MAX = 5
"""How often a value that a tombstone or its copy hid is written again."""
UNKNOWN = -1
LOOK_MS = 500
"""Between two looks at transactions that are open."""
NAMED_MAX = 5


class TombstonesRefusedError(SiltstoneError):
    """Agents did not take the tombstones. No erasure was requested; some tombstones may be in the log."""


class BusyKeyError(SiltstoneError):
    """Producers wrote a key again and again while its newest value was written behind its tombstone."""


class ValueNotRestoredError(SiltstoneError):
    """Agents did not take a value again that a tombstone hides. No erasure was requested; the tombstones are there."""


async def _nameless(stable: Mapping[int, int]) -> str:
    number, offset = next(iter(stable.items()))
    return f"a transaction that is open since offset {offset} of partition {number}"


class KeyLog:
    """One topic, as agents show it.

    `restores`: values that are newer than the request's time stay. `name_transactions`: says which transactions are
    open at these offsets, by partition number.
    """

    def __init__(
        self,
        client: RetryingClient,
        topic: str,
        partitions: int,
        clock: Clock,
        told: Callable[[str], None],
        *,
        restores: bool = False,
        name_transactions: Callable[[Mapping[int, int]], Awaitable[str]] = _nameless,
    ) -> None:
        self._client, self._topic, self._partitions = client, topic, partitions
        self._clock, self._told = clock, told
        self._restores, self._name_transactions = restores, name_transactions

    async def offsets_at(self, time_ms: int) -> Mapping[int, int]:
        """By partition number, the first offset whose record is that late; the end of the log where none is."""
        found = await self._reaches(OffsetRange(Place(Anchor.TIME, time_ms)))
        return {number: reach.position for (_, number), reach in found.items()}

    async def look(
        self,
        keys: Collection[bytes],
        newest: dict[PartitionKey, Newest],
        start: Mapping[int, int] | None = None,
        on_read: Callable[[int, int], None] = lambda _done, _all: None,
    ) -> Mapping[int, int]:
        """Note the newest record of each key in `newest`. Reads from `start`, or everything, to the present ends, and
        returns these. `on_read` hears of the offsets that were read, and of all."""
        reach = await self._reaches(OffsetRange(Place(Anchor.START)))
        for (_, number), each in reach.items():
            each.position = max(each.position, start[number] if start is not None else 0)
        ends = {number: each.until or 0 for (_, number), each in reach.items()}
        whole = sum(max(0, ends[number] - each.position) for (_, number), each in reach.items())
        stable = await self._stable(ends)

        def note(records: Sequence[OutputRecord]) -> None:
            for each in records:
                if each.key is not None and each.key in keys:
                    place = each.partition, each.key
                    newest[place] = _after(newest.get(place), each, is_known=each.offset < stable[each.partition])
            left = sum(max(0, ends[number] - at.position) for (_, number), at in reach.items())
            on_read(whole - left, whole)

        for isolation, until in ((Isolation.READ_COMMITTED, stable), (Isolation.READ_UNCOMMITTED, ends)):
            for (_, number), each in reach.items():
                each.until = until[number]
            reading = read(self._client, reach, told=self._told, isolation=isolation, with_aborted=True)
            async with aclosing(reading) as batches:
                async for records in batches:
                    note(records)
        return ends

    async def delete(self, keys: Sequence[PartitionKey], looked_to: Mapping[int, int]) -> Mapping[PartitionKey, int]:
        """Write a tombstone for each key; returns their offsets. `looked_to`: where the last look ended; if it
        restores, values from there on are meant to stay.

        Raises TombstonesRefusedError, BusyKeyError, KafkaError, UnavailableError.
        """
        tombstones: dict[PartitionKey, int] = {}
        if not keys:
            return tombstones
        to_write = {place: _tombstone(number, *place) for number, place in enumerate(keys, start=1)}
        from_offset = {place: looked_to[place[0]] for place in keys}
        for _ in range(ROUNDS_MAX + 1):
            offsets = await self._write(to_write)
            looks = self._restores or UNKNOWN in offsets.values()
            between = await self._records_from(from_offset if looks else {})
            again: dict[PartitionKey, InputRecord] = {}
            for place, written in to_write.items():
                later = between.get(place, ())
                offset = offsets[place] if offsets[place] != UNKNOWN else _offset_of(written, later)
                tombstones.setdefault(place, offset)
                hidden = next((each for each in reversed(later) if each.offset < offset), None)
                if self._restores and hidden is not None and (written.value, hidden.value) != (None, None):
                    again[place] = _copy(hidden, written.number)
                from_offset[place] = offset + 1
            if not again:
                return tombstones
            to_write = again
            from_offset = {place: from_offset[place] for place in again}
        partition, key = next(iter(to_write))
        raise BusyKeyError(
            f"producers write the key {shown_bytes(key)} in partition {partition} so often that its newest value could"
            f" not be written behind its tombstone in {ROUNDS_MAX} tries; no erasure was requested. The newest value in"
            " the log may be an older one now",
            remedy="stop the producers of the key, write its value again, and run this command again",
        )

    async def _reaches(self, span: OffsetRange) -> dict[TopicPartition, Reach]:
        places = [(self._topic, number) for number in range(self._partitions)]

        async def find(inner: KafkaClient) -> dict[TopicPartition, Reach]:
            return await reaches(inner, places, span, to_end=True, told=self._told)

        return await self._client.run(find)

    async def _stable(self, ends: Mapping[int, int]) -> Mapping[int, int]:
        """How far of these ends it is known what transactions mean. If it restores, waits until all of it is."""
        places = [(self._topic, number) for number in sorted(ends)]
        span, said = OffsetRange(Place(Anchor.START)), ""

        async def find(inner: KafkaClient) -> dict[TopicPartition, Reach]:
            isolation = Isolation.READ_COMMITTED
            return await reaches(inner, places, span, to_end=True, told=self._told, isolation=isolation)

        while True:
            found = {number: each.until or 0 for (_, number), each in (await self._client.run(find)).items()}
            open_at = {number: offset for number, offset in found.items() if offset < ends[number]}
            if not open_at or not self._restores:
                return {number: min(offset, ends[number]) for number, offset in found.items()}
            if (waits := f"waiting on {await self._name_transactions(open_at)}") != said:
                said = waits
                self._told(said)
            await self._clock.sleep_ms(LOOK_MS)

    async def _write(self, records: Mapping[PartitionKey, InputRecord]) -> Mapping[PartitionKey, int]:
        offsets: dict[PartitionKey, int] = {}
        refusals: list[Refused] = []

        def stored(batch: Stored) -> None:
            for at, each in enumerate(batch.records):
                offset = batch.base_offset + at if batch.base_offset >= 0 else UNKNOWN
                offsets[batch.partition, each.key or b""] = offset

        writer = TopicWriter(
            self._client,
            self._topic,
            self._partitions,
            # A value that is written again must be no larger than the batch that it came in.
            ProduceOptions(codec=Codec.ZSTD),
            self._clock,
            WriteResults(stored=stored, refused=refusals.append),
        )
        await writer.write(list(records.values()))
        if refusals and any(each.value is not None for each in records.values()):
            raise ValueNotRestoredError(
                f"a value that is to stay lies below the tombstone of its key, and was not written again:"
                f" {refusals[0].why}; no erasure was requested. Keys: {_some(records)}",
                remedy=refusals[0].remedy or "write the newest values of these keys again, then run this command again",
            )
        if refusals:
            raise TombstonesRefusedError(
                f"a tombstone was not written: {refusals[0].why}; no erasure was requested", remedy=refusals[0].remedy
            )
        return offsets

    async def _records_from(
        self, from_offset: Mapping[PartitionKey, int]
    ) -> Mapping[PartitionKey, Sequence[OutputRecord]]:
        """The records of each key from its offset to the present end, in order: those of no transaction, and committed
        ones if it restores."""
        if not from_offset:
            return {}
        found: dict[PartitionKey, list[OutputRecord]] = defaultdict(list)
        starts: dict[int, int] = {}
        for (number, _), offset in from_offset.items():
            starts[number] = min(offset, starts.get(number, offset))
        present = await self._reaches(OffsetRange(Place(Anchor.START)))
        until = {number: present[self._topic, number].until or 0 for number in starts}
        isolation = Isolation.READ_UNCOMMITTED
        if self._restores:
            until, isolation = await self._stable(until), Isolation.READ_COMMITTED
        reach = {(self._topic, number): Reach(start, until[number]) for number, start in starts.items()}
        async with aclosing(read(self._client, reach, told=self._told, isolation=isolation)) as batches:
            async for records in batches:
                for each in records:
                    place = each.partition, each.key or b""
                    is_known = self._restores or not each.is_transactional
                    if is_known and place in from_offset and each.offset >= from_offset[place]:
                        found[place].append(each)
        return found


def _after(before: Newest | None, record: OutputRecord, *, is_known: bool) -> Newest:
    """`is_known`: no open transaction began below the record."""
    last = before or Newest(-1, is_tombstone=False)
    if record.is_aborted or (record.is_transactional and not is_known):
        return last._replace(unseen_offset=record.offset)
    return last._replace(offset=record.offset, is_tombstone=record.value is None)


def _some(records: Mapping[PartitionKey, InputRecord]) -> str:
    shown = [shown_bytes(key) for _, key in list(records)[:NAMED_MAX]]
    return ", ".join(shown) + (f" and {len(records) - NAMED_MAX} more" if len(records) > NAMED_MAX else "")


def _tombstone(number: int, partition: int, key: bytes) -> InputRecord:
    return InputRecord(number, key, None, partition=partition)


def _copy(record: OutputRecord, number: int) -> InputRecord:
    timestamp_ms = record.timestamp_ms if record.timestamp_ms >= 0 else None
    return InputRecord(number, record.key, record.value, record.headers, record.partition, timestamp_ms)


def _offset_of(written: InputRecord, later: Sequence[OutputRecord]) -> int:
    """The offset of a record whose agent did not tell it, because it was sent twice: the newest one like it."""
    for each in reversed(later):
        if each.value == written.value:
            return each.offset
    raise TombstonesRefusedError(
        f"the tombstone of {shown_bytes(written.key or b'')} is not in the log; no erasure was requested",
        remedy="run this command again",
    )
