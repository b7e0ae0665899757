"""Histories with transactions: open, committed and aborted ones over several partitions, whose markers no object holds.

After every commit consumers of both isolation levels read the partitions that it changed, in answers of random size
from random offsets. They get the list of aborted transactions as it is, and the same with everything that was listed
within half the grace, because an agent's plans may be so old.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from random import Random

from metadata.contract.agents import each_live_file
from metadata.contract.l0_commit import BatchResult, CommitL0, L0Batch
from metadata.rules.packed_index import iter_index
from storage.keys import file_key
from tests.compaction.histories import NO_ERASURES, NO_HABITS, STEPS, Outcome, run_seed
from tests.compaction.log import records_of
from tests.compaction.model import UNREADABLE, Rec, fold
from tests.compaction.producers import Producers, Sent
from tests.compaction.specs import GRACE_MS
from tests.compaction.transactions.clients import CLIENTS, answered
from tests.compaction.transactions.ledger import Ledger, ListedJobs
from tests.compaction.world import World
from tests.fixtures.cleaning import ABORT, COMMIT, marker_batch
from tests.fixtures.record_batches import with_payload
from wire.batch import ProducerStamp, iter_headers, read_header, stamp_offset
from wire.codecs import Codec
from wire.records import NewRecord, build_batch

HABITS: Mapping[str, float] = {
    **NO_ERASURES,
    "recreate": 0.2,
    "policy": 0.3,
    "late": 0.0,
    "read slowly": 0.2,
    "delete records": 0.3,
    "level now": 2,
    "request": 6,
    "time": 2,
}
"""Many passes over what few clients write."""
PRODUCERS = range(1_000_001, 1_000_004)
KINDS = (ABORT, ABORT, COMMIT)
MARKER = (("a marker", None),)
"""The headers of its place in the model."""


class TransactionalProducers(Producers):
    """Half of the batches belong to transactions."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._mine = world

    async def batch(self, partition_id: int) -> Sent:
        world, r = self._mine, self._mine.random
        if r.random() < 0.4:
            return await super().batch(partition_id)
        records = [
            NewRecord(world.clock.wall_ms(), b"k%d" % r.randrange(world.key_count), self._value())
            for _ in range(r.choice([1, 1, 2, 3]))
        ]
        body = build_batch(
            records,
            codec=r.choice([Codec.NONE, Codec.NONE, Codec.ZSTD]),
            producer=ProducerStamp(r.choice(PRODUCERS)),
            transactional=True,
        )
        return (with_payload(body, b"\xff" * 40), []) if r.random() < world.poison else (body, records)

    def _value(self) -> bytes | None:
        world = self._mine
        world.values += 1
        return None if world.random.random() < 0.2 else b"v-%d-%d" % (world.seed, world.values)


class TransactionWorld(World):
    def __post_init__(self) -> None:
        super().__post_init__()
        self.ledger = Ledger(chance=Random(self.seed))
        self.metadata.compactors = ListedJobs(self.metadata.database, self.clock, self.ledger)
        self.producers = TransactionalProducers(self)
        self.ledger.forgetful = self.random.choice([0.0, 0.8])
        self.is_forgetful = self.ledger.forgetful > 0
        self.shares = {each: self.random.choice([0.1, 0.5, 0.9]) for each in PRODUCERS}
        """Of each producer's open transactions, those that end in one go."""
        self.reading = Random(self.seed)
        """Its own chance, so that reading does not change the history."""

    async def create_topic(self, name: str) -> None:
        """Few topics, so that a producer's transactions meet."""
        if name != "orders":
            await super().create_topic(name)

    def more_actions(self) -> Mapping[str, int]:
        return {"end transactions": 24}

    async def act(self, action: str) -> None:
        assert action == "end transactions"
        await self.end_transactions(self.shares)

    async def before_the_end(self) -> None:
        await self.end_transactions(dict.fromkeys(PRODUCERS, 1.0))

    async def before_turn(self, *, last: bool) -> None:
        if last:
            self.ledger.forgetful = 0.0

    # ---- transactions

    def _answered(self, partition_id: int, sent: Sent, result: BatchResult) -> None:
        start = self.models[partition_id].end
        super()._answered(partition_id, sent, result)
        header = read_header(sent[0])
        if header.is_transactional:
            assert not result.error
            assert not result.duplicate
            self.ledger.data(partition_id, header.producer_id, range(start, self.models[partition_id].end))

    async def end_transactions(self, shares: Mapping[int, float], *, kinds: Sequence[int] = KINDS) -> None:
        """Some open transactions, in one file that no object holds, each with one marker for all its partitions."""
        r = self.random
        open_producers = self.ledger.open_producers
        if not open_producers:
            return
        ending = [each for each in open_producers if r.random() < shares.get(each, 0.0)]
        ended = {each: r.choice(kinds) for each in ending}
        inline, rows = b"", list[tuple[L0Batch, int]]()
        for producer_id, kind in ended.items():
            for partition_id in self.ledger.places_of(producer_id):
                if partition_id not in self.models:
                    self.ledger.partitions.pop(partition_id)  # its topic is deleted
                    continue
                at_ms = self.clock.wall_ms()
                rows.append((L0Batch(partition_id, len(inline), 78, 1, at_ms, at_ms), producer_id))
            inline += marker_batch(kind, producer_id, 0, timestamp_ms=self.clock.wall_ms())
        if not rows:
            return
        rows.sort(key=lambda each: (each[0].partition_id, each[0].position))
        now_ms = self.clock.wall_ms()
        key = file_key(
            level=0,
            writer_id=self.lease.writer_id,
            epoch=self.lease.epoch,
            file_uuid=self.ids.uuid7(now_ms),
            created_ms=now_ms,
        )
        self.ledger.inline[key] = inline
        self.seq += 1
        committed = await self.metadata.agents.commit_l0(
            CommitL0(
                lease=self.lease,
                seq=self.seq,
                key=key,
                size_bytes=len(inline),
                crc32c=0,
                batches=[row for row, _ in rows],
            )
        )
        for (row, producer_id), result in zip(rows, committed.results, strict=True):
            model = self.models[row.partition_id]
            assert (result.error, result.base_offset) == (0, model.end)
            aborts = ended[producer_id] == ABORT
            self.ledger.end(row.partition_id, producer_id, model.end, aborts=aborts, now_ms=now_ms)
            model.records.append(Rec(model.end, None, None, now_ms, MARKER))
            self.count("aborted" if aborts else "committed")
        self.say(f"file {committed.file_id} ends " + ", ".join(f"{each} {kind}" for each, kind in ended.items()))

    # ---- reading

    async def l0_bytes(self, key: str, position: int, length: int) -> bytes:
        inline = self.ledger.inline.get(key)
        return await super().l0_bytes(key, position, length) if inline is None else inline[position : position + length]

    async def read(self, partition_id: int) -> tuple[list[Rec], int, int]:
        """Without markers, which no application sees."""
        found, start, end = await super().read(partition_id)
        markers = self.ledger.partitions[partition_id].markers
        return [each for each in found if each.offset not in markers], start, end

    async def batches(self, partition_id: int) -> list[bytes]:
        """All batches of the partition that readers can get, offsets stamped."""
        marks = (await self.metadata.agents.watermarks([partition_id]))[partition_id]
        found: list[bytes] = []
        async for file in each_live_file(self.metadata.agents, await self.metadata.agents.snapshot()):
            for row in iter_index(file.index):
                if row.partition_id == partition_id and row.last_offset >= marks.log_start_offset:
                    offset = row.base_offset
                    for batch in split(await self.l0_bytes(file.key, row.position, row.length)):
                        found.append(stamp_offset(memoryview(batch), offset) + batch[16:])
                        offset += read_header(batch).last_offset_delta + 1
        for extent in await self.metadata.readers.leveled_extents(partition_id, marks.log_start_offset, limit=10_000):
            if extent.length:
                found += split(await self.objects.get_range(extent.key, extent.position, extent.length))
        return sorted(found, key=lambda batch: read_header(batch).base_offset)

    async def check(self, partition_ids: Iterable[int] | None = None) -> None:
        for partition_id in sorted(self.models if partition_ids is None else self.models.keys() & set(partition_ids)):
            model = self.models[partition_id]
            present, start, end = await self.read(partition_id)
            if end != model.end:
                self.violations.append(f"{model.name}: high watermark {end}, {model.end} were written")
            for record in present:
                if model.records[record.offset] != record:
                    self.violations.append(f"{model.name}: {record} was written as {model.records[record.offset]}")
            self._check_what_is_open(partition_id, present, start)
            await self._check_consumers(partition_id, start)

    def _check_what_is_open(self, partition_id: int, present: Sequence[Rec], log_start: int) -> None:
        """Nothing at or above the last stable offset has gone: a consumer of uncommitted records reads all of it."""
        model, mine = self.models[partition_id], self.ledger.partitions[partition_id]
        stable = max(mine.stable_offset(model.end), log_start)
        offsets = {record.offset for record in present}
        if lost := [each for each in range(stable, model.end) if each not in offsets | mine.markers]:
            self.violations.append(f"{model.name}: {lost} lie above the last stable offset {stable} and are lost")

    async def _check_consumers(self, partition_id: int, log_start: int) -> None:
        model, mine, r = self.models[partition_id], self.ledger.partitions[partition_id], self.reading
        stable = mine.stable_offset(model.end)
        batches = [each for each in await self.batches(partition_id) if read_header(each).next_offset <= stable]
        since_ms = self.clock.wall_ms() - GRACE_MS // 2
        lists = {"as it is": set(mine.listed), "of half the grace": mine.listed_since(since_ms) | set(mine.listed)}
        begins = {log_start, r.randint(log_start, max(log_start, stable))}
        for begin in sorted(begins):
            expected = self._committed(partition_id, begin, stable)
            for name, listed in lists.items():
                for client, deliver in CLIENTS.items():
                    seen: list[Rec] = []
                    for answer, fetch_offset in _answers(batches, begin, r):
                        for batch in deliver(answer, answered(listed, answer, fetch_offset)):
                            seen += records_of(batch, None)
                    what = f"{model.name}: a {client} consumer from {begin} to {stable}, with the list {name},"
                    self._judge(partition_id, what, [each for each in seen if each.offset >= begin], expected)

    def _committed(self, partition_id: int, begin: int, stable: int) -> list[Rec]:
        mine = self.ledger.partitions[partition_id]
        hidden = mine.aborted | mine.markers
        return [each for each in self.models[partition_id].records[begin:stable] if each.offset not in hidden]

    def _judge(self, partition_id: int, what: str, seen: Sequence[Rec], expected: Sequence[Rec]) -> None:
        model, mine = self.models[partition_id], self.ledger.partitions[partition_id]
        offsets = [each.offset for each in seen]
        if offsets != sorted(set(offsets)):
            self.violations.append(f"{what} sees {offsets}")
        if wrong := [each for each in offsets if each in mine.aborted]:
            self.violations.append(f"{what} sees {wrong} of aborted transactions, listed are {mine.listed}")
        there = set(offsets)
        if not model.was_compact and (lost := [each.offset for each in expected if each.offset not in there]):
            self.violations.append(f"{what} does not see {lost}, listed are {mine.listed}")
        unread = [each.offset for each in expected if each.headers == UNREADABLE and each.offset not in there]
        if unread:
            self.violations.append(f"{what} does not see {unread}, of batches that nobody can read")
        state, wanted = fold(seen), fold(expected)
        for key in sorted(state.keys() | wanted.keys()):
            if state.get(key) != wanted.get(key):
                self.violations.append(
                    f"{what} sees {key!r} as {state.get(key)!r}, it was committed as {wanted.get(key)!r},"
                    f" listed are {mine.listed}"
                )

    async def read_slowly(self) -> None:
        await self.check([self.random.choice(sorted(self.models))])

    async def check_clean(self, partition_id: int, cleaned_through: int, *, last: bool) -> None:
        """Nothing is listed any more below the end of the pass, unless a batch that nobody can read is in the way."""
        model, mine = self.models[partition_id], self.ledger.partitions[partition_id]
        present, start, _ = await self.read(partition_id)
        if any(each.headers == UNREADABLE for each in present):
            return
        if last:
            there = {read_header(each).base_offset for each in await self.batches(partition_id)}
            self.count("markers gone", sum(each >= start and each not in there for each in mine.markers))
            self.count("markers", len(mine.markers))
        if self.is_forgetful:
            return  # the last pass may have come before the last turn
        if listed := [one for one in mine.listed if start <= one[2] < cleaned_through]:
            self.violations.append(f"{model.name}: {listed} are still listed after the pass through {cleaned_through}")


def run_transactions(
    seed: int, *, steps: int = STEPS, habits: Mapping[str, float] = NO_HABITS, heavy: bool = False
) -> Outcome:
    return run_seed(seed, steps=steps, habits={**HABITS, **habits}, heavy=heavy, kind=TransactionWorld)


def split(body: bytes) -> list[bytes]:
    return [body[at : at + header.size_bytes] for at, header in iter_headers(body)]


def _answers(batches: Sequence[bytes], begin: int, r: Random) -> Iterable[tuple[Sequence[bytes], int]]:
    """(batches of an answer, the offset asked for), from an offset to the end."""
    left = [each for each in batches if read_header(each).last_offset >= begin]
    while left:
        count = r.choice([1, 2, 3, len(left)])
        yield left[:count], begin
        begin = read_header(left[min(count, len(left)) - 1]).next_offset
        left = left[count:]
