"""Read the records of topics from any place, batch by batch, up to the end that was asked for.

First the reader looks up all places, with one request for each kind; then it fetches all partitions together, again and
again. If an offset is no longer in the log (retention, DeleteRecords), the reader says so and goes on at the log start,
as `auto.offset.reset=earliest` would; from an offset beyond the end it goes on at the end. A new connection neither
loses nor repeats a record, because this module counts the offsets that it has returned.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from runtime.errors import BadInputError
from siltstone.kafka.client import EARLIEST, LATEST, KafkaClient, KafkaError
from siltstone.kafka.offset_spec import Anchor, OffsetRange, Place
from siltstone.kafka.record_format import OutputRecord
from siltstone.kafka.records import (
    FetchedPartition,
    Isolation,
    TopicPartition,
    batches_of,
    fetch_partitions,
    offsets_at,
)
from siltstone.kafka.retrying import RetryingClient, is_passing
from wire.error_codes import ErrorCode

MAX_WAIT_MS = 500
"""A fetch waits this long for a first record."""
_OUT_OF_RANGE = int(ErrorCode.OFFSET_OUT_OF_RANGE)


class NoSuchPartitionError(BadInputError):
    """The topic has no partition with this number."""


@dataclass(slots=True)
class Reach:
    """One partition: the next offset to read, and the end (exclusive; None = no end)."""

    position: int
    until: int | None
    wanted: int | None = None
    """The end of the range that was asked for. `until` may lie before it, at the present end of the log."""
    stable: int = 0
    """The last stable offset that a reader of committed records was told of; to others the same as `end`."""
    end: int = 0
    """The high watermark at that time."""

    @property
    def done(self) -> bool:
        return self.until is not None and self.position >= self.until

    @property
    def held(self) -> int:
        """How many offsets from `position` on are there, but not for this reader: a transaction holds them back."""
        if self.stable >= self.end or self.position < self.stable:
            return 0
        return max(0, (self.end if self.wanted is None else min(self.end, self.wanted)) - self.position)


async def partitions_of(client: KafkaClient, topic: str, wanted: Collection[int] | None) -> Sequence[TopicPartition]:
    """The partitions of a topic, or only the `wanted` ones. Raises KafkaError, NoSuchPartitionError."""
    numbers = sorted(each.partition_index for each in (await client.topic(topic)).partitions)
    missing = sorted(set(wanted or ()) - set(numbers))
    if missing:
        raise NoSuchPartitionError(
            f"topic {topic} has no partition {missing[0]}",
            remedy="it has only partition 0" if len(numbers) == 1 else f"give partitions from 0 to {len(numbers) - 1}",
        )
    return [(topic, number) for number in numbers if wanted is None or number in wanted]


async def reaches(
    client: KafkaClient,
    partitions: Sequence[TopicPartition],
    span: OffsetRange,
    *,
    places: Mapping[TopicPartition, int] = MappingProxyType({}),
    to_end: bool,
    told: Callable[[str], None],
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
) -> dict[TopicPartition, Reach]:
    """Look up where to start and end in each partition. `places` overrides the start of `span` for its partitions.
    `to_end`: stop at the present end of the partition. To readers of committed records, "end" means the last stable
    offset.

    A start outside the log moves to the nearer end of the log. If the start was an explicit offset, `told` gets a line
    about the move. Raises KafkaError.
    """
    starts = await _offsets(client, dict.fromkeys(partitions, EARLIEST))
    # The end before the last stable offset: one below it is then held back, and not written meanwhile.
    ends = await _offsets(client, dict.fromkeys(partitions, LATEST))
    stable = ends
    if isolation is Isolation.READ_COMMITTED:
        stable = await stable_offsets(client, partitions)
    first = {**await _placed(client, span.first, starts, stable, isolation), **places}
    last = None if span.until is None else await _placed(client, span.until, starts, stable, isolation)
    found: dict[TopicPartition, Reach] = {}
    for each in partitions:
        position = min(max(first[each], starts[each]), ends[each])
        if position != first[each] and (each in places or span.first.anchor is Anchor.OFFSET):
            there = f"has offsets {starts[each]} to {ends[each] - 1}" if ends[each] > starts[each] else "is empty"
            told(f"{each[0]} partition {each[1]} {there}: reading from offset {position}, not from {first[each]}")
        wanted = until = None if last is None else last[each]
        if to_end:
            until = stable[each] if until is None else min(until, stable[each])
        found[each] = Reach(position, until, wanted, stable[each], ends[each])
    return found


async def stable_offsets(client: KafkaClient, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
    """The last stable offsets: the ends for readers of committed records. Raises KafkaError."""
    return await _offsets(client, dict.fromkeys(partitions, LATEST), Isolation.READ_COMMITTED)


async def _placed(
    client: KafkaClient,
    place: Place,
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    isolation: Isolation,
) -> Mapping[TopicPartition, int]:
    match place.anchor:
        case Anchor.START:
            return {each: start + place.number for each, start in starts.items()}
        case Anchor.END:
            return {each: end - place.number for each, end in ends.items()}
        case Anchor.OFFSET:
            return dict.fromkeys(starts, place.number)
        case Anchor.TIME:
            found = await _offsets(client, dict.fromkeys(starts, place.number), isolation)
            return {each: ends[each] if offset < 0 else offset for each, offset in found.items()}


async def _offsets(
    client: KafkaClient, asked: Mapping[TopicPartition, int], isolation: Isolation = Isolation.READ_UNCOMMITTED
) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    for each, answer in (await offsets_at(client, asked, isolation=isolation)).items():
        if isinstance(answer, KafkaError):
            raise answer
        found[each] = answer
    return found


async def read(
    client: RetryingClient,
    partitions: Mapping[TopicPartition, Reach],
    *,
    told: Callable[[str], None],
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
    with_aborted: bool = False,
) -> AsyncGenerator[Sequence[OutputRecord]]:
    """The records of all partitions, a batch at a time, in order within a partition, until every reach is done.

    After each round of fetching it yields an empty batch, so that the caller can act while no records arrive. The
    positions of the reaches move past the returned records. `with_aborted`: of committed isolation, also the records of
    aborted transactions, marked as such. Raises KafkaError, DamagedBatchError.
    """
    while True:
        positions = {each: reach.position for each, reach in partitions.items() if not reach.done}
        if not positions:
            return

        for fetched in await client.run(partial(_fetch, positions, isolation)):
            reach = partitions[fetched.topic, fetched.partition]
            if fetched.error_code == _OUT_OF_RANGE:
                await _move_to_start(client, fetched, reach, told)
            # A temporary error of one partition is passed over here: the next round fetches from it again.
            elif fetched.error_code and not is_passing(fetched.error_code):
                raise KafkaError(fetched.error_code, f"fetch from {fetched.topic}-{fetched.partition}")
            else:
                if isolation is Isolation.READ_COMMITTED and fetched.last_stable_offset >= 0:
                    reach.stable, reach.end = fetched.last_stable_offset, fetched.high_watermark
                for records, following in batches_of(fetched, reach.position, with_aborted=with_aborted):
                    until = reach.until
                    reach.position = following
                    # An agent answers with whole batches, so the last one may reach past the end.
                    yield records if until is None else [each for each in records if each.offset < until]
        yield ()


async def _fetch(
    positions: Mapping[TopicPartition, int], isolation: Isolation, client: KafkaClient
) -> Sequence[FetchedPartition]:
    """Fetch from all positions. If only temporary errors came, raises a KafkaError, so that the client retries."""
    fetched = await fetch_partitions(client, positions, max_wait_ms=MAX_WAIT_MS, isolation=isolation)
    failed = next((each for each in fetched if is_passing(each.error_code)), None)
    if failed is not None and not any(each.records for each in fetched):
        raise KafkaError(failed.error_code, f"fetch from {failed.topic}-{failed.partition}")
    return fetched


async def _move_to_start(
    client: RetryingClient, fetched: FetchedPartition, reach: Reach, told: Callable[[str], None]
) -> None:
    place = fetched.topic, fetched.partition

    async def look(inner: KafkaClient) -> tuple[int, int]:
        return (await _offsets(inner, {place: EARLIEST}))[place], (await _offsets(inner, {place: LATEST}))[place]

    start, end = await client.run(look)
    if start <= reach.position <= end:
        return  # the agent that answered did not know the present end of the log yet
    moved = start if reach.position < start else end
    told(f"{place[0]} partition {place[1]}: offset {reach.position} is not in the log, reading on from {moved}")
    reach.position = moved
