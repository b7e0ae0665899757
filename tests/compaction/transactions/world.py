"""Histories with transactions: open, committed and aborted ones over several partitions, whose markers no object holds.

After every commit consumers of both isolation levels read the partitions that it changed, in answers of random size
from random offsets. They get the list of aborted transactions as it is, and the same with everything that was listed
within half the grace, because an agent's plans may be so old.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from metadata.contract.agents import each_live_file
from metadata.contract.l0_commit import NOT_TRANSACTIONAL, BatchResult, CommitL0, Committed
from metadata.rules.packed_index import iter_index
from metadata.transactions.contract import (
    MARKER_BYTES,
    EndTransaction,
    EndTransactions,
    Entry,
    InitProducer,
    TransactionLease,
)
from metadata.transactions.rows import TxnRow, TxnRowKind, decode_txn_rows
from storage.keys import file_key
from tests.compaction.histories import NO_ERASURES, NO_HABITS, STEPS, Outcome, run_seed
from tests.compaction.log import records_of
from tests.compaction.model import UNREADABLE, Rec, fold
from tests.compaction.producers import Producers, Sent
from tests.compaction.specs import GRACE_MS
from tests.compaction.transactions.clients import CLIENTS, answered
from tests.compaction.transactions.ledger import ForgetfulJobs, Listed, PartitionTransactions
from tests.compaction.world import World
from tests.fixtures.cleaning import ABORT, COMMIT
from tests.fixtures.record_batches import with_payload
from wire.batch import ProducerStamp, iter_headers, read_header, stamp_offset
from wire.codecs import Codec
from wire.markers import build_marker
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
NAMES = ("t1", "t2", "t3")
KINDS = (ABORT, ABORT, COMMIT)
MARKER = (("a marker", None),)
"""The headers of its place in the model."""


@dataclass(slots=True)
class Client:
    """A transactional producer of the second protocol."""

    name: str
    producer_id: int
    epoch: int
    lease: TransactionLease
    share: float
    """Of its open transactions, those that end at an opportunity."""
    txn_seq: int = NOT_TRANSACTIONAL
    sequences: dict[int, int] = field(default_factory=dict[int, int])
    """The next one, by partition id."""


class TransactionalProducers(Producers):
    """Half of the batches belong to transactions."""

    def __init__(self, world: TransactionWorld) -> None:
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
        codec = r.choice([Codec.NONE, Codec.NONE, Codec.ZSTD])
        body = await self.in_transaction(r.choice(world.clients), partition_id, records, codec)
        return (with_payload(body, b"\xff" * 40), []) if r.random() < world.poison else (body, records)

    async def in_transaction(
        self, client: Client, partition_id: int, records: Sequence[NewRecord], codec: Codec = Codec.NONE
    ) -> bytes:
        entry = Entry(client.name, client.producer_id, client.epoch, partition_id, True)
        (entered,) = await self._mine.metadata.transactions.enter([entry], partitions_max=100)
        assert not entered.error
        client.txn_seq = entered.txn_seq
        stamp = ProducerStamp(client.producer_id, client.epoch, client.sequences.get(partition_id, 0))
        client.sequences[partition_id] = stamp.base_sequence + len(records)
        return build_batch(records, codec=codec, producer=stamp, transactional=True)

    def _value(self) -> bytes | None:
        world = self._mine
        world.values += 1
        return None if world.random.random() < 0.2 else b"v-%d-%d" % (world.seed, world.values)


class TransactionWorld(World):
    def __post_init__(self) -> None:
        super().__post_init__()
        self.jobs = ForgetfulJobs(self.metadata.database, self.clock, Random(self.seed))
        self.jobs.lost = self.random.choice([0.0, 0.8])
        self.is_forgetful = self.jobs.lost > 0
        self.metadata.compactors = self.jobs
        self.truth: defaultdict[int, PartitionTransactions] = defaultdict(PartitionTransactions)
        """By partition id."""
        self.producers: TransactionalProducers = TransactionalProducers(self)
        self.clients: list[Client] = []
        self.marker_seq = 0
        self.reading = Random(self.seed)
        """Its own chance, so that reading does not change the history."""

    async def begin(self) -> None:
        await super().begin()
        self.markers = await self.metadata.transactions.register_marker_writer(self.lease)
        for name in NAMES:
            (new_id,) = await self.metadata.agents.allocate_producer_ids(1)
            made = await self.metadata.transactions.init_producer(
                InitProducer(transactional_id=name, timeout_ms=60_000, new_producer_id=new_id), owner=self.lease
            )
            share = self.random.choice([0.1, 0.5, 0.9])
            self.clients.append(Client(name, made.producer_id, made.producer_epoch, made.lease, share))

    async def create_topic(self, name: str) -> None:
        """Few topics, so that a producer's transactions meet."""
        if name != "orders":
            await super().create_topic(name)

    def more_actions(self) -> Mapping[str, int]:
        return {"end transactions": 24}

    async def act(self, action: str) -> None:
        assert action == "end transactions"
        await self.end_transactions([each for each in self.clients if self.random.random() < each.share])

    async def before_the_end(self) -> None:
        await self.end_transactions(self.clients)

    async def before_turn(self, *, last: bool) -> None:
        if last:
            self.jobs.lost = 0.0

    # ---- transactions

    async def _commit(self, request: CommitL0, file_id: int | None) -> Committed:
        numbers = {each.producer_id: each.txn_seq for each in self.clients}
        batches = [each._replace(txn_seq=numbers.get(each.producer_id, NOT_TRANSACTIONAL)) for each in request.batches]
        return await super()._commit(replace(request, batches=batches), file_id)

    def _answered(self, partition_id: int, sent: Sent, result: BatchResult) -> None:
        start = self.models[partition_id].end
        super()._answered(partition_id, sent, result)
        header = read_header(sent[0])
        if header.is_transactional:
            assert not result.error
            assert not result.duplicate
            self.truth[partition_id].data(header.producer_id, range(start, self.models[partition_id].end))

    def is_open(self, client: Client) -> bool:
        return any(client.producer_id in self.truth[partition_id].open for partition_id in self.models)

    async def end_transactions(self, clients: Sequence[Client], *, kinds: Sequence[int] = KINDS) -> None:
        """Those that are open, in one file that no object holds."""
        ending = {each.producer_id: each for each in clients if self.is_open(each)}
        if not ending:
            return
        now_ms = self.clock.wall_ms()
        ends: list[EndTransaction] = []
        for client in ending.values():
            commits = self.random.choice(kinds) == COMMIT
            marker = build_marker(
                client.producer_id, client.epoch + 1, commit=commits, coordinator_epoch=1, timestamp_ms=now_ms
            )
            ends.append(
                EndTransaction(
                    transactional_id=client.name,
                    producer_id=client.producer_id,
                    producer_epoch=client.epoch,
                    commit=commits,
                    marker=marker,
                    client_version=2,
                    lease=client.lease,
                )
            )
        self.marker_seq += 1
        key = file_key(
            level=0,
            writer_id=self.markers.writer_id,
            epoch=self.markers.epoch,
            file_uuid=self.ids.uuid7(now_ms),
            created_ms=now_ms,
        )
        ended = await self.metadata.transactions.end_transactions(
            EndTransactions(
                lease=self.markers,
                seq=self.marker_seq,
                key=key,
                ends=ends,
                timestamp_ms=now_ms,
                new_producer_ids=list(await self.metadata.agents.allocate_producer_ids(len(ends))),
            )
        )
        assert len(ended.inline) == MARKER_BYTES * len(ends)
        for row in decode_txn_rows(ended.txn_rows):
            self._marked(row, now_ms)
        for client, result in zip(ending.values(), ended.results, strict=True):
            assert not result.error
            assert result.producer_id == client.producer_id
            client.epoch, client.txn_seq = result.producer_epoch, NOT_TRANSACTIONAL
            client.sequences.clear()
        said = ", ".join(f"{each.transactional_id} {'commits' if each.commit else 'aborts'}" for each in ends)
        self.say(f"file {ended.file_id}: {said}")

    def _marked(self, row: TxnRow, now_ms: int) -> None:
        model, truth = self.models[row.partition_id], self.truth[row.partition_id]
        assert row.last_offset == model.end, "offsets are dense"
        aborts = row.kind is TxnRowKind.ABORT
        assert row.first_offset == truth.end(row.producer_id, model.end, aborts=aborts)
        model.records.append(Rec(model.end, None, None, now_ms, MARKER))
        truth.lists(self.listed(row.partition_id), now_ms)
        self.count("aborted" if aborts else "committed")

    def listed(self, partition_id: int) -> set[Listed]:
        """The aborted transactions that the metadata list now."""
        return {
            (each.producer_id, each.first_offset, each.last_offset)
            for each in self.metadata.database.transactions.aborted
            if each.partition_id == partition_id
        }

    # ---- reading

    async def read(self, partition_id: int) -> tuple[list[Rec], int, int]:
        """Without markers, which no application sees."""
        found, start, end = await super().read(partition_id)
        markers = self.truth[partition_id].markers
        return [each for each in found if each.offset not in markers], start, end

    async def batches(self, partition_id: int) -> list[bytes]:
        """All batches of the partition that readers can get, offsets stamped."""
        marks = (await self.metadata.agents.watermarks([partition_id]))[partition_id]
        found: list[bytes] = []
        async for file in each_live_file(self.metadata.agents, await self.metadata.agents.snapshot()):
            for row in iter_index(file.index):
                if row.partition_id == partition_id and row.last_offset >= marks.log_start_offset:
                    offset = row.base_offset
                    for batch in split(await self.l0_bytes(file, row)):
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
            marks = (await self.metadata.agents.watermarks([partition_id]))[partition_id]
            if marks.last_stable_offset != max(start, self.truth[partition_id].stable_offset(end)):
                self.violations.append(f"{model.name}: the stable offset is {marks.last_stable_offset}")
            await self._check_consumers(partition_id, start)

    def _check_what_is_open(self, partition_id: int, present: Sequence[Rec], log_start: int) -> None:
        """Nothing at or above the last stable offset has gone: a consumer of uncommitted records reads all of it."""
        model, mine = self.models[partition_id], self.truth[partition_id]
        stable = max(mine.stable_offset(model.end), log_start)
        offsets = {record.offset for record in present}
        if lost := [each for each in range(stable, model.end) if each not in offsets | mine.markers]:
            self.violations.append(f"{model.name}: {lost} lie above the last stable offset {stable} and are lost")

    async def _check_consumers(self, partition_id: int, log_start: int) -> None:
        model, mine, r = self.models[partition_id], self.truth[partition_id], self.reading
        stable = mine.stable_offset(model.end)
        batches = [each for each in await self.batches(partition_id) if read_header(each).next_offset <= stable]
        since_ms = self.clock.wall_ms() - GRACE_MS // 2
        mine.lists(self.listed(partition_id), self.clock.wall_ms())
        lists = {"as it is": self.listed(partition_id), "of half the grace": mine.listed_since(since_ms)}
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
        mine = self.truth[partition_id]
        hidden = mine.aborted | mine.markers
        return [each for each in self.models[partition_id].records[begin:stable] if each.offset not in hidden]

    def _judge(self, partition_id: int, what: str, seen: Sequence[Rec], expected: Sequence[Rec]) -> None:
        model, mine = self.models[partition_id], self.truth[partition_id]
        offsets = [each.offset for each in seen]
        if offsets != sorted(set(offsets)):
            self.violations.append(f"{what} sees {offsets}")
        listed = sorted(self.listed(partition_id))
        if wrong := [each for each in offsets if each in mine.aborted]:
            self.violations.append(f"{what} sees {wrong} of aborted transactions, listed are {listed}")
        there = set(offsets)
        if not model.was_compact and (lost := [each.offset for each in expected if each.offset not in there]):
            self.violations.append(f"{what} does not see {lost}, listed are {listed}")
        unread = [each.offset for each in expected if each.headers == UNREADABLE and each.offset not in there]
        if unread:
            self.violations.append(f"{what} does not see {unread}, of batches that nobody can read")
        state, wanted = fold(seen), fold(expected)
        for key in sorted(state.keys() | wanted.keys()):
            if state.get(key) != wanted.get(key):
                self.violations.append(
                    f"{what} sees {key!r} as {state.get(key)!r}, it was committed as {wanted.get(key)!r},"
                    f" listed are {listed}"
                )

    async def read_slowly(self) -> None:
        await self.check([self.random.choice(sorted(self.models))])

    async def check_clean(self, partition_id: int, cleaned_through: int, *, last: bool) -> None:
        """Nothing is listed any more below the end of the pass, unless a batch that nobody can read is in the way."""
        model, mine = self.models[partition_id], self.truth[partition_id]
        _, start, _ = await self.read(partition_id)
        if any(each.headers == UNREADABLE for each in model.records):
            return  # the batch may have expired since the last pass
        if last:
            there = {read_header(each).base_offset for each in await self.batches(partition_id)}
            self.count("markers gone", sum(each >= start and each not in there for each in mine.markers))
            self.count("markers", len(mine.markers))
        if self.is_forgetful:
            return  # the last pass may have come before the last turn
        if listed := [one for one in self.listed(partition_id) if start <= one[2] < cleaned_through]:
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
