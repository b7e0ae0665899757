"""The clients of a history: their batches, some of them sent again.

Each partition has one idempotent producer, which writes some of its batches. A retry that was stored already is known
by its sequence: the file that brings it holds its bytes, and no row names them.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING
from uuid import UUID

from metadata.contract.l0_commit import L0Batch
from storage.format.file_format import ExtentSource
from tests.compaction.poison import poisoned
from wire.batch import NO_PRODUCER, ProducerStamp, read_header
from wire.codecs import Codec
from wire.records import NewRecord, build_batch

if TYPE_CHECKING:
    from tests.compaction.world import World

Sent = tuple[bytes, list[NewRecord]]
"""A batch and its records; no records if they cannot be read."""
KNOWN = 5
"""A retry of an older batch is not known any more (`ProducerStateEntry.NUM_BATCHES_TO_RETAIN`)."""


@dataclass
class _Producer:
    producer_id: int
    next_sequence: int = 0
    stored: deque[tuple[Sent, int]] = field(default_factory=lambda: deque[tuple[Sent, int]](maxlen=KNOWN))
    """Its last batches and their base offsets."""


class Producers:
    def __init__(self, world: World) -> None:
        self._world = world
        self._by_partition: dict[int, _Producer] = {}

    async def batch(self, partition_id: int) -> Sent:
        world, r = self._world, self._world.random
        model = world.models[partition_id]
        records: list[NewRecord] = []
        for _ in range(r.choice([1, 1, 2, 3, 5])):
            world.values += 1
            key: bytes | None = b"k%d" % r.randrange(world.key_count)
            if r.random() < 0.03:
                key = b""
            if not model.was_compact and r.random() < 0.3:
                key = None
            value = None if r.random() < 0.25 else b"v-%d-%d" % (world.seed, world.values)
            headers = (("h", b"%d" % world.values),) if r.random() < 0.1 else ()
            records.append(NewRecord(world.clock.wall_ms(), key, value, headers))
        codec = Codec.NONE if r.random() < 0.7 else r.choice(list(Codec))
        if r.random() < world.poison:
            return poisoned(build_batch(records, codec=codec), r), []
        stamp = await self._stamp(partition_id, len(records)) if r.random() < 0.4 else NO_PRODUCER
        return build_batch(records, codec=codec, producer=stamp), records

    async def _stamp(self, partition_id: int, count: int) -> ProducerStamp:
        if partition_id not in self._by_partition:
            (producer_id,) = await self._world.metadata.agents.allocate_producer_ids(1)
            self._by_partition[partition_id] = _Producer(producer_id)
        producer = self._by_partition[partition_id]
        stamp = ProducerStamp(producer.producer_id, 0, producer.next_sequence)
        producer.next_sequence += count
        return stamp

    def stored(self, partition_id: int, sent: Sent, base_offset: int) -> None:
        header = read_header(sent[0])
        if header.producer_id >= 0 and not header.is_transactional:
            self._by_partition[partition_id].stored.append((sent, base_offset))

    def stored_at(self, partition_id: int, body: bytes) -> int:
        """The offset of a batch that was stored."""
        return next(offset for (stored, _), offset in self._by_partition[partition_id].stored if stored == body)

    async def send_again(self) -> None:
        """One of the last batches, with new ones or alone.

        Values whose erasure is done are not sent again: the new file would hold them.
        """
        world, r = self._world, self._world.random
        erased = frozenset[bytes]().union(*(each.values for each in world.erasures.requested if each.done))
        known: defaultdict[int, list[Sent]] = defaultdict(list)
        for partition_id in sorted(world.models.keys() & self._by_partition.keys()):
            for sent, _ in self._by_partition[partition_id].stored:
                if not erased.intersection(record.value for record in sent[1] if record.value):
                    known[partition_id].append(sent)
        if not known:
            return
        partition_id = r.choice(sorted(known))
        built = {partition_id: [r.choice(known[partition_id])]}
        for each in sorted(world.models):
            if r.random() < 0.3:
                built[each] = [*built.get(each, []), await self.batch(each)]
        await world.write(built=built)


def laid_out(
    built: Mapping[int, list[Sent]], places: Mapping[int, tuple[UUID, int]], random: Random
) -> tuple[list[ExtentSource], list[L0Batch], list[Sent]]:
    """Batches by partition id as a file has them: its extents, and for each batch its row and what the client sent.

    A few are masked, as an agent masks a batch that it refuses: holes in the file.
    """
    extents, rows, sent, position = list[ExtentSource](), list[L0Batch](), list[Sent](), 0
    for partition_id, batches in built.items():
        topic_id, number = places[partition_id]
        headers = [read_header(body) for body, _ in batches]
        stamps = [header.max_timestamp_ms for header in headers]  # all records of a batch have the same one
        count = sum(each.records_count for each in headers)
        extents.append(ExtentSource(topic_id, number, [body for body, _ in batches], count, min(stamps), max(stamps)))
        for (body, records), header in zip(batches, headers, strict=True):
            at_ms = header.max_timestamp_ms
            # A producer's next batch would be refused too, so only those without one are masked.
            masked = 2 if header.producer_id < 0 and random.random() < 0.05 else 0
            row = L0Batch(partition_id, position, len(body), header.records_count, at_ms, at_ms)
            rows.append(
                row._replace(
                    producer_id=header.producer_id,
                    producer_epoch=header.producer_epoch,
                    base_sequence=header.base_sequence,
                    masked_error=masked,
                )
            )
            sent.append((body, records))
            position += len(body)
    return extents, rows, sent
