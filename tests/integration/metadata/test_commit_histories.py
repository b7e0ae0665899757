"""The commit function against its model: random histories of commits must get the same answers from both.

The model is `metadata/rules/producer_state.py` with `metadata/rules/stretches.py`, behind the memory implementation;
the other side is the PL/pgSQL function, in which the rules are written a second time.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence

import pytest

from metadata.contract.l0_commit import CommitL0, L0Batch, ProducerState
from metadata.contract.leases import AgentAddress, WriterLease
from metadata.contract.store import MetadataStore
from metadata.memory.store import MemoryMetadata
from metadata.postgres.connection import connect
from metadata.postgres.store import PostgresMetadata
from metadata.rules.invariants.all_levels import check_log_1, check_prod_1
from metadata.rules.packed_index import decode_index
from runtime.clock import SystemClock
from tests.contract.metadata_worlds import BATCH_BYTES, Writer, batch, new_key, new_topic, sent, stored
from tests.fixtures.postgres import run_sql

COMMITS, BATCHES_MAX = 40, 24
SEQUENCES = 2**31
UNKNOWN_PRODUCER = 10**12
DAY_MS = 86_400_000
DELETED_MS = SystemClock().wall_ms() - DAY_MS // 2
ALLOCATED_MS = [DELETED_MS - 2 * DAY_MS, DELETED_MS - 1, DELETED_MS, DELETED_MS, DELETED_MS + 1]
"""Allocation times of the producer ids from 0 on: expired, a millisecond before the deletion, twice in the same
millisecond, a millisecond after it."""
PREDECESSOR_DELETED_MS = [None, DELETED_MS, DELETED_MS, DELETED_MS - 1]
"""The deletion of an older topic of the same name, for each partition."""


class Clients:
    """Producers that mostly behave: they go on, retry, skip, bump their epoch, or send with an old epoch. `tame` is the
    share of files in which all of them go on; these are usual, and take the quick call."""

    def __init__(
        self, chance: random.Random, partition_ids: list[int], producer_ids: list[int], *, tame: float = 0.0
    ) -> None:
        self.chance = chance
        self.tame = tame
        self.partition_ids = partition_ids
        self.producer_ids = producer_ids
        self.epochs: dict[tuple[int, int], int] = defaultdict(int)
        self.next: dict[tuple[int, int], int] = {}
        self.past: dict[tuple[int, int], list[L0Batch]] = defaultdict(list)

    def file(self) -> list[L0Batch]:
        """Batches ordered by partition, as in an agent's file. One file in four has its partitions in any order."""
        if self.chance.random() < self.tame:
            batches = [self.next_batch() for _ in range(self.chance.randint(1, BATCHES_MAX))]
            return sorted(batches, key=lambda one: one.partition_id)
        batches = [self.batch() for _ in range(self.chance.randint(0, BATCHES_MAX))]
        if self.chance.random() < 0.75:
            batches.sort(key=lambda one: one.partition_id)
        return batches

    def learn(self, states: Sequence[ProducerState]) -> None:
        """Go on where the store has them, as a client does after an error."""
        for state in states:
            who = (state.partition_id, state.producer_id)
            self.epochs[who] = state.epoch
            self.next[who] = (state.batches[-1][1] + 1) % SEQUENCES

    def next_batch(self) -> L0Batch:
        """One that is stored, unless the producer's last one was not."""
        partition_id = self.chance.choice(self.partition_ids)
        count = self.chance.choice([1, 2, 1000])
        more = {"log_append_time_ms": self.chance.choice([-1, -1, self.chance.randint(0, 99)])}
        if self.chance.random() < 0.2:
            return batch(partition_id, count, **more)
        who = (partition_id, self.chance.choice(self.producer_ids))
        sequence = self.next.setdefault(who, 0)
        made = sent(*who, sequence, count, epoch=self.epochs[who], **more)
        self.past[who].append(made)
        self.next[who] = (sequence + count) % SEQUENCES
        return made

    def batch(self) -> L0Batch:
        partition_id = self.chance.choice([*self.partition_ids, 10_000])
        count = self.chance.choice([0] + [1, 2, 3, 1000] * 6)
        times = sorted(self.chance.randint(-1, 50) for _ in range(2))
        more = {
            "min_timestamp_ms": times[0],
            "max_timestamp_ms": times[1],
            "log_append_time_ms": self.chance.choice([-1, 777, self.chance.randint(0, 99)]),
            "masked_error": self.chance.choice([0] * 12 + [87]),
        }
        if self.chance.random() < 0.2:
            return batch(partition_id, count, **more)
        who = (partition_id, self.chance.choice(self.producer_ids))
        roll = self.chance.random()
        if roll < 0.3 and self.past[who]:
            return self.chance.choice(self.past[who][-7:])
        epoch = self.epochs[who]
        start = self.chance.choice([0, 0, SEQUENCES - 3])
        sequence = self.next.setdefault(who, start)
        if roll < 0.38:
            epoch = self.epochs[who] = min(epoch + 1, 2**15 - 1)
            sequence = self.chance.choice([0, 0, 0, 3])
        elif roll < 0.44:
            epoch = max(0, epoch - 1)
        elif roll < 0.5:
            sequence = self.chance.choice([0, 1, sequence + 2, SEQUENCES - 1]) % SEQUENCES
        made = sent(*who, sequence, count, epoch=epoch, **more)
        self.past[who].append(made)
        self.next[who] = (sequence + max(count, 1)) % SEQUENCES
        return made


def requests(chance: random.Random, lease: WriterLease, clients: Clients) -> Iterator[CommitL0]:
    for seq in range(COMMITS):
        batches, position = [], 0
        for one in clients.file():
            length = chance.randint(1, BATCH_BYTES)
            batches.append(one._replace(position=position, length=length))
            position += length
        yield CommitL0(lease=lease, seq=seq, key=new_key(), size_bytes=position, crc32c=0, batches=batches)


async def prepare(service: MetadataStore) -> tuple[WriterLease, list[int], list[int]]:
    """Create the same writer, partitions and producer ids in each store."""
    lease = await service.agents.register_agent(AgentAddress(host="a", port=1))
    topic = await service.agents.create_topic("t", partitions=len(PREDECESSOR_DELETED_MS), configs={})
    producer_ids = [(await service.agents.allocate_producer_ids(1))[0] for _ in ALLOCATED_MS]
    return lease, list(topic.partition_ids), [*producer_ids, UNKNOWN_PRODUCER]


async def prepare_both(
    model: MemoryMetadata, function: PostgresMetadata, url: str
) -> tuple[WriterLease, list[int], list[int]]:
    """Prepare both stores with the same times to the millisecond, because each has its own clock."""
    prepared = await prepare(model)
    assert await prepare(function) == prepared
    _, partition_ids, producer_ids = prepared
    statements: list[str] = []
    for partition_id, deleted_ms in zip(partition_ids, PREDECESSOR_DELETED_MS, strict=True):
        model.database.partitions[partition_id].predecessor_deleted_ms = deleted_ms
        value = "NULL" if deleted_ms is None else deleted_ms
        statements.append(f"UPDATE partitions SET predecessor_deleted_ms = {value} WHERE partition_id = {partition_id}")
    model.database.producer_id_blocks.clear()
    for producer_id, at_ms in zip(producer_ids, ALLOCATED_MS, strict=False):
        model.database.producer_id_blocks.append((range(producer_id, producer_id + 1), at_ms))
        statements.append(f"UPDATE producer_id_blocks SET allocated_ms = {at_ms} WHERE first_id = {producer_id}")
    await run_sql(url, *statements)
    return prepared


async def hold_together(seed: int, postgres_url: str, *, tame: float) -> tuple[set[int], int]:
    """One history on both: the answers and, after every commit, the states must be the same. Returns the errors met
    (-100: a duplicate) and the number of files that took the quick call."""
    model, function = MemoryMetadata(), PostgresMetadata(postgres_url)
    await function.open()
    lease, partition_ids, producer_ids = await prepare_both(model, function, postgres_url)
    chance = random.Random(seed)
    codes: set[int] = set()

    clients = Clients(chance, partition_ids, producer_ids, tame=tame)
    for number, request in enumerate(requests(chance, lease, clients)):
        if number == COMMITS // 2:
            for service in (model, function):
                added = await service.agents.create_topic("late", partitions=1, configs={})
            partition_ids.append(added.partition_ids[0])
        expected, answered = await model.agents.commit_l0(request), await function.agents.commit_l0(request)
        assert list(answered.results) == list(expected.results), f"commit {number}"
        assert decode_index(answered.index) == decode_index(expected.index), f"commit {number}"
        codes |= {result.error for result in answered.results}
        codes |= {-100 for result in answered.results if result.duplicate}
        marks = await function.agents.watermarks(partition_ids)
        assert marks == await model.agents.watermarks(partition_ids), f"commit {number}"
        mine, its = await model.agents.producer_states(), await function.agents.producer_states()
        assert [(s.partition_id, s.producer_id, s.epoch, list(s.batches)) for s in its] == [
            (s.partition_id, s.producer_id, s.epoch, list(s.batches)) for s in mine
        ], f"commit {number}"
        if tame:
            clients.learn(mine)

    assert check_log_1(await function.operators.files(), marks) == []
    assert check_prod_1(its, marks) == []
    line = await connect(postgres_url)
    quick = await line.fetchval("SELECT count(*) FROM files WHERE results = '' AND index <> '\\x01'")
    await line.close()
    await function.close()
    return codes, quick


@pytest.mark.parametrize("seed", range(8))
async def test_the_commit_functions_answer_as_their_model_does(seed: int, postgres_url: str) -> None:
    codes, _ = await hold_together(seed, postgres_url, tame=0.0)
    assert {0, -100, -1, 3, 45, 47, 87} <= codes, "the histories are too tame to tell the two apart"


@pytest.mark.parametrize("seed", range(8))
async def test_usual_files_between_others_are_answered_as_their_model_does(seed: int, postgres_url: str) -> None:
    codes, quick = await hold_together(1000 + seed, postgres_url, tame=0.8)
    assert quick > COMMITS / 3, "too few files took the quick call"
    assert {0, -100, 45} <= codes


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2000, 4000))
async def test_two_thousand_histories(seed: int, postgres_url: str) -> None:
    await hold_together(seed, postgres_url, tame=seed % 5 / 4)


async def test_both_let_a_producer_without_state_begin_in_the_middle_for_the_same_ages(postgres_url: str) -> None:
    model, function = MemoryMetadata(), PostgresMetadata(postgres_url)
    await function.open()
    lease, partition_ids, producer_ids = await prepare_both(model, function, postgres_url)
    batches = [sent(partition_id, producer_id, 7) for partition_id in partition_ids for producer_id in producer_ids]
    request = Writer(service=function, lease=lease).request(batches)

    modelled, answered = await model.agents.commit_l0(request), await function.agents.commit_l0(request)

    assert list(answered.results) == list(modelled.results)
    codes = iter(result.error for result in answered.results)
    table = [[next(codes) for _ in producer_ids] for _ in partition_ids]
    # columns: expired, a ms before the deletion, at it, at it, a ms after it, never allocated
    assert table == [
        [0, 45, 45, 45, 45, 45],  # nothing was deleted
        [0, 0, 0, 0, 45, 45],
        [0, 0, 0, 0, 45, 45],
        [0, 0, 45, 45, 45, 45],  # deleted a millisecond earlier
    ]
    await function.close()


async def test_the_answers_do_not_depend_on_the_order_in_which_a_plan_returns_rows(postgres_url: str) -> None:
    service = PostgresMetadata(postgres_url)
    await service.open()
    writer = await Writer.register(service)
    partition_ids = (await new_topic(service, partitions=40)).partition_ids
    # given tables whose rows lie in another order, and plans that read them in that order
    for partition_id in random.Random(7).sample(partition_ids, len(partition_ids)):
        moved = f"UPDATE watermarks SET next_offset = {partition_id} WHERE partition_id = {partition_id}"
        await run_sql(postgres_url, moved)
    await run_sql(
        postgres_url,
        "VACUUM FULL watermarks",
        "ALTER FUNCTION commit_l0_v4 RESET ALL",
        "ALTER FUNCTION commit_l0_v4 SET enable_indexscan = off SET enable_bitmapscan = off SET enable_material = off",
    )

    committed = await writer.commit(*(sent(partition_id, 0, 0) for partition_id in partition_ids))

    assert [result.base_offset for result in committed.results] == list(partition_ids)
    assert [row.base_offset for row in decode_index(committed.index)] == list(partition_ids)
    states = await service.agents.producer_states()
    assert [state.batches[0][2] for state in states] == list(partition_ids)
    await service.close()


async def test_a_producer_whose_sequences_begin_again_at_0_takes_the_quick_call(postgres_url: str) -> None:
    service = PostgresMetadata(postgres_url)
    await service.open()
    writer = await Writer.register(service)
    (one,) = (await new_topic(service)).partition_ids
    # given: a producer that is 2 records short of the last sequence
    await writer.commit(sent(one, 7, 0, SEQUENCES - 2))
    # when: its next batch goes beyond
    answers = [await writer.commit(sent(one, 7, *at)) for at in ((SEQUENCES - 2, 5), (3, 1))]
    # then
    assert [list(answer.results) for answer in answers] == [[stored(SEQUENCES - 2)], [stored(SEQUENCES + 3)]]
    line = await connect(postgres_url)
    assert await line.fetchval("SELECT count(*) FROM files WHERE results <> ''") == 0
    await line.close()
    await service.close()
