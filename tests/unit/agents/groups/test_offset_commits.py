"""The offset commits of one agent are grouped into one call at a time. Their order is kept, and an uncertain result
stays with its group.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from uuid import UUID

import pytest

from agents.groups import offset_commits
from agents.groups.events import TransactionalProducer
from agents.groups.offset_commits import OffsetCommits, grouped
from metadata.contract.errors import MetadataUnavailableError
from metadata.contract.leases import AgentAddress, WriterLease
from metadata.groups.contract import (
    GroupLease,
    GroupMetadata,
    OffsetCommitBatch,
    OffsetCommitResult,
    OffsetPlace,
    OffsetToCommit,
)
from metadata.memory.store import MemoryMetadata
from metadata.transactions.contract import (
    InitProducer,
    TransactionalOffsets,
    TransactionalOffsetsResult,
    TransactionMetadata,
)
from runtime.errors import BadInputError
from runtime.metrics import Metrics
from runtime.runtime import Runtime
from tests.fixtures.metadata_parts import Part
from tests.fixtures.metric_values import metric_value
from wire.error_codes import ErrorCode

A, B = (GroupLease(group_id=name, epoch=epoch) for name, epoch in (("a", 1), ("b", 2)))
TOPIC = UUID(int=1)


def at(partition: int, offset: int, *, topic_id: UUID = TOPIC, metadata: str = "") -> OffsetToCommit:
    return OffsetToCommit(place=OffsetPlace(topic_id, partition), offset=offset, leader_epoch=-1, metadata=metadata)


def test_commits_of_one_lease_become_one_batch_in_which_the_last_of_a_place_stays() -> None:
    batches = grouped([(A, [at(0, 1), at(1, 1)]), (B, [at(0, 5)]), (A, [at(0, 2)])])
    assert [(batch.lease, [(each.place.partition, each.offset) for each in batch.offsets]) for batch in batches] == [
        (A, [(0, 2), (1, 1)]),
        (B, [(0, 5)]),
    ]


def test_two_leases_of_one_group_are_two_batches() -> None:
    newer = GroupLease(group_id="a", epoch=9)
    assert [batch.lease for batch in grouped([(A, [at(0, 1)]), (newer, [at(0, 2)])])] == [A, newer]


class GatedGroups(Part):
    """Calls wait until the gate is open. Then they fail with `failure`, if it is set."""

    def __init__(self, inner: GroupMetadata) -> None:
        super().__init__(inner)
        self.gate = asyncio.Event()
        self.gate.set()
        self.failure: Exception | None = None
        self.forgets_results = False
        self.calls: list[Sequence[OffsetCommitBatch]] = []

    async def commit_offsets(self, batches: Sequence[OffsetCommitBatch]) -> Sequence[OffsetCommitResult]:
        self.calls.append(batches)
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        if any("refused" in each.metadata for batch in batches for each in batch.offsets):
            raise BadInputError("a value that the store does not take")
        results = await self.inner.commit_offsets(batches)
        return [] if self.forgets_results else results


class GatedTransactions(Part):
    """As `GatedGroups`."""

    def __init__(self, inner: TransactionMetadata) -> None:
        super().__init__(inner)
        self.gate = asyncio.Event()
        self.gate.set()
        self.failure: Exception | None = None
        self.forgets_results = False
        self.calls: list[Sequence[TransactionalOffsets]] = []

    async def commit_offsets(self, requests: Sequence[TransactionalOffsets]) -> Sequence[TransactionalOffsetsResult]:
        self.calls.append(requests)
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        if any("refused" in each.metadata for request in requests for each in request.offsets):
            raise BadInputError("a value that the store does not take")
        results = await self.inner.commit_offsets(requests)
        return [] if self.forgets_results else results


class Scene:
    def __init__(
        self, groups: GatedGroups, transactions: GatedTransactions, owner: WriterLease, topic_id: UUID
    ) -> None:
        self.groups, self.transactions, self._owner, self.topic_id = groups, transactions, owner, topic_id
        self.lost: list[tuple[GroupLease, ErrorCode]] = []
        self.metrics = Metrics()
        self.commits = OffsetCommits(
            metadata=groups,
            transactions=transactions,
            runtime=Runtime(metrics=self.metrics),
            on_lost=lambda lease, error: self.lost.append((lease, error)),
        )

    async def take(self, group_id: str) -> GroupLease:
        taken = await self.groups.take_group(group_id, owner=self._owner, create=True)
        assert taken is not None
        return taken.lease

    def begin(self, lease: GroupLease, *offsets: OffsetToCommit) -> asyncio.Task[offset_commits.Outcome]:
        return asyncio.create_task(self.commits.add(lease, offsets))

    async def producer(self, name: str = "t") -> TransactionalProducer:
        made = await self.transactions.init_producer(
            InitProducer(transactional_id=name, timeout_ms=60_000, new_producer_id=len(name)), owner=self._owner
        )
        return TransactionalProducer(
            transactional_id=name, producer_id=made.producer_id, producer_epoch=made.producer_epoch, adds=True
        )

    def hold(
        self, lease: GroupLease, producer: TransactionalProducer, *offsets: OffsetToCommit
    ) -> asyncio.Task[offset_commits.Outcome]:
        return asyncio.create_task(self.commits.add(lease, offsets, producer))

    async def pending(self, group_id: str) -> set[int]:
        return {place.partition for place in (await self.groups.stable_offsets(group_id)).pending}

    def commits_counted(self, outcome: str) -> float:
        return metric_value(self.metrics, "offset_commits_total", {"outcome": outcome})

    def at(self, partition: int, offset: int, metadata: str = "") -> OffsetToCommit:
        return at(partition, offset, topic_id=self.topic_id, metadata=metadata)

    async def stored(self, group_id: str) -> dict[int, int]:
        offsets = await self.groups.offsets(group_id)
        return {place.partition: each.offset for place, each in offsets.items()}


async def begun(part: GatedGroups | GatedTransactions, calls: int) -> None:
    async with asyncio.timeout(5):
        while len(part.calls) < calls:
            await asyncio.sleep(0.001)


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    metadata = MemoryMetadata()
    await metadata.open()
    owner = await metadata.agents.register_agent(AgentAddress(host="h", port=1))
    topic = await metadata.agents.create_topic("t", partitions=4, configs={})
    transactions = GatedTransactions(metadata.transactions)
    scene = Scene(GatedGroups(metadata.groups), transactions, owner, topic.topic_id)
    scene.commits.start()
    yield scene
    await scene.commits.close()
    await metadata.close()


async def test_what_comes_together_is_one_call_and_each_learns_what_came_of_its_own(scene: Scene) -> None:
    a, b = await scene.take("a"), await scene.take("b")
    outcomes = await asyncio.gather(
        scene.begin(a, scene.at(0, 7)), scene.begin(b, scene.at(0, 8), scene.at(9, 1)), scene.begin(a, scene.at(1, 9))
    )
    assert len(scene.groups.calls) == 1
    missing = OffsetPlace(scene.topic_id, 9)
    assert [outcome.unknown for outcome in outcomes if isinstance(outcome, OffsetCommitResult)][1] == {missing}
    assert (await scene.stored("a"), await scene.stored("b")) == ({0: 7, 1: 9}, {0: 8})


async def test_a_call_takes_no_more_offsets_than_it_may(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_commits, "OFFSETS_PER_CALL_MAX", 3)
    a, b = await scene.take("a"), await scene.take("b")
    two, whole = [scene.at(0, 1), scene.at(1, 1)], [scene.at(partition, 2) for partition in range(4)]
    commits = (scene.begin(a, *two), scene.begin(b, *two), scene.begin(b, scene.at(2, 1)), scene.begin(a, *whole))
    await asyncio.gather(*commits)
    sizes = [[len(batch.offsets) for batch in call] for call in scene.groups.calls]
    assert sizes == [[2], [3], [4]], "a request is never divided"
    assert await scene.stored("a") == dict.fromkeys(range(4), 2)


async def test_what_comes_during_a_call_is_the_next_one(scene: Scene) -> None:
    lease = await scene.take("a")
    scene.groups.gate.clear()
    first = scene.begin(lease, scene.at(0, 1))
    await begun(scene.groups, 1)
    later = [scene.begin(lease, scene.at(0, offset)) for offset in (2, 3)]
    await asyncio.sleep(0.03)
    assert len(scene.groups.calls) == 1, "one call is under way at a time"
    scene.groups.gate.set()
    await asyncio.gather(first, *later)
    assert len(scene.groups.calls) == 2
    assert await scene.stored("a") == {0: 3}


async def test_a_fenced_lease_is_told_and_touches_no_other(scene: Scene) -> None:
    old, b = await scene.take("a"), await scene.take("b")
    await scene.take("a")
    fenced, written = await asyncio.gather(scene.begin(old, scene.at(0, 1)), scene.begin(b, scene.at(0, 2)))
    assert isinstance(fenced, OffsetCommitResult) and fenced.fenced
    assert isinstance(written, OffsetCommitResult) and not written.fenced
    assert scene.lost == [(old, ErrorCode.NOT_COORDINATOR)]
    assert (await scene.stored("a"), await scene.stored("b")) == ({}, {0: 2})


async def test_after_a_doubt_nothing_more_is_written_under_that_lease(scene: Scene) -> None:
    # given: a call whose answer will be lost, and behind it a commit of the same group and one of another
    a, b = await scene.take("a"), await scene.take("b")
    scene.groups.gate.clear()
    scene.groups.failure = MetadataUnavailableError("the connection was lost")
    doubtful = scene.begin(a, scene.at(0, 1))
    await begun(scene.groups, 1)
    behind, other = scene.begin(a, scene.at(0, 2)), scene.begin(b, scene.at(0, 3))
    await asyncio.sleep(0)
    # when
    scene.groups.gate.set()
    assert await doubtful is ErrorCode.COORDINATOR_NOT_AVAILABLE
    scene.groups.failure = None
    # then: the lost call might arrive behind the second, so the second is not sent
    assert await behind is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert isinstance(await other, OffsetCommitResult)
    assert scene.lost == [(a, ErrorCode.COORDINATOR_NOT_AVAILABLE)]
    assert (await scene.stored("a"), await scene.stored("b")) == ({}, {0: 3})


async def test_one_that_cannot_be_stored_does_not_fail_the_others(scene: Scene) -> None:
    a, b = await scene.take("a"), await scene.take("b")
    bad, good = await asyncio.gather(scene.begin(a, scene.at(0, 1, "refused")), scene.begin(b, scene.at(0, 2)))
    assert bad is ErrorCode.INVALID_REQUEST
    assert isinstance(good, OffsetCommitResult)
    assert (scene.lost, await scene.stored("b")) == ([], {0: 2})


async def test_a_bug_that_spoils_one_call_does_not_hang_the_commits_after_it(scene: Scene) -> None:
    lease = await scene.take("a")
    scene.groups.forgets_results = True
    async with asyncio.timeout(10):
        assert await scene.begin(lease, scene.at(0, 1)) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        scene.groups.forgets_results = False
        assert isinstance(await scene.begin(lease, scene.at(0, 2)), OffsetCommitResult)
    assert await scene.stored("a") == {0: 2}


async def test_a_caller_who_goes_away_leaves_his_commit_to_be_written(scene: Scene) -> None:
    lease = await scene.take("a")
    gone = scene.begin(lease, scene.at(0, 5))
    await asyncio.sleep(0)
    gone.cancel()
    await scene.commits.drain()
    assert await scene.stored("a") == {0: 5}


async def test_a_group_is_settled_when_its_commits_have_their_outcome(scene: Scene) -> None:
    a, b = await scene.take("a"), await scene.take("b")
    scene.groups.gate.clear()
    scene.begin(a, scene.at(0, 1))
    await begun(scene.groups, 1)
    async with asyncio.timeout(1):
        await scene.commits.settled(b.group_id)
    waiting = asyncio.create_task(scene.commits.settled(a.group_id))
    await asyncio.sleep(0.02)
    assert not waiting.done()
    scene.groups.gate.set()
    await waiting
    assert await scene.stored("a") == {0: 1}


async def test_above_the_bound_a_commit_is_told_to_come_again(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_commits, "BYTES_WAITING_MAX", 3 * offset_commits.OFFSET_BYTES)
    lease = await scene.take("a")
    scene.groups.gate.clear()
    waiting = [scene.begin(lease, scene.at(partition, 1)) for partition in range(3)]
    await asyncio.sleep(0)
    assert await scene.commits.add(lease, [scene.at(3, 1)]) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    scene.groups.gate.set()
    await asyncio.gather(*waiting)
    assert isinstance(await scene.commits.add(lease, [scene.at(3, 1)]), OffsetCommitResult)
    assert await scene.stored("a") == {0: 1, 1: 1, 2: 1, 3: 1}


async def test_a_drained_one_takes_no_more(scene: Scene) -> None:
    lease = await scene.take("a")
    await scene.commits.drain()
    assert await scene.commits.add(lease, [scene.at(0, 1)]) is ErrorCode.NOT_COORDINATOR


# ---- in transactions


async def test_offsets_that_come_during_a_call_are_held_by_the_next_one(scene: Scene) -> None:
    a, b, producer, other = (
        await scene.take("a"),
        await scene.take("b"),
        await scene.producer(),
        await scene.producer("o"),
    )
    scene.transactions.gate.clear()
    first = scene.hold(a, producer, scene.at(0, 1))
    await begun(scene.transactions, 1)
    later = [
        scene.hold(a, producer, scene.at(0, 2)),
        scene.hold(b, producer, scene.at(1, 9), scene.at(9, 9)),
        scene.hold(a, other, scene.at(2, 3)),
    ]
    await asyncio.sleep(0.02)
    assert len(scene.transactions.calls) == 1, "one call is under way at a time"
    scene.transactions.gate.set()
    outcomes = await asyncio.gather(first, *later)
    assert [outcome.unknown for outcome in outcomes if isinstance(outcome, OffsetCommitResult)] == [
        frozenset(),
        frozenset(),
        frozenset({OffsetPlace(scene.topic_id, 9)}),
        frozenset(),
    ]
    assert [[(each.group, each.transactional_id) for each in call] for call in scene.transactions.calls] == [
        [(a, "t")],
        [(a, "t"), (b, "t"), (a, "o")],
    ]
    assert (await scene.pending("a"), await scene.pending("b"), await scene.stored("a")) == ({0, 2}, {1}, {})
    assert (scene.groups.calls, scene.commits_counted("committed")) == ([], 4)


async def test_a_call_holds_no_more_offsets_than_it_may(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_commits, "OFFSETS_PER_CALL_MAX", 3)
    lease, producer = await scene.take("a"), await scene.producer()
    scene.transactions.gate.clear()
    sizes = (1, 2, 1, 1, 4)
    held = [scene.hold(lease, producer, *(scene.at(partition, 1) for partition in range(size))) for size in sizes]
    await begun(scene.transactions, 1)
    scene.transactions.gate.set()
    await asyncio.gather(*held)
    called = [[len(each.offsets) for each in call] for call in scene.transactions.calls]
    assert called == [[1, 2], [1, 1], [4]], "a request is never divided"


async def test_one_that_cannot_be_held_does_not_fail_the_others(scene: Scene) -> None:
    lease, producer = await scene.take("a"), await scene.producer()
    held = [scene.hold(lease, producer, scene.at(0, 1, "refused")), scene.hold(lease, producer, scene.at(1, 1))]
    bad, good = await asyncio.gather(*held)
    assert bad is ErrorCode.INVALID_REQUEST
    assert isinstance(good, OffsetCommitResult)
    assert await scene.pending("a") == {1}


async def test_a_bug_that_spoils_one_call_does_not_hang_the_offsets_after_it(scene: Scene) -> None:
    lease, producer = await scene.take("a"), await scene.producer()
    scene.transactions.forgets_results = True
    async with asyncio.timeout(10):
        assert await scene.hold(lease, producer, scene.at(0, 1)) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        scene.transactions.forgets_results = False
        assert isinstance(await scene.hold(lease, producer, scene.at(1, 2)), OffsetCommitResult)


async def test_what_the_store_says_of_the_producer_is_the_outcome(scene: Scene) -> None:
    lease, producer = await scene.take("a"), await scene.producer()
    wrong = [
        (replace(producer, producer_epoch=1), ErrorCode.PRODUCER_FENCED),
        (replace(producer, producer_id=77), ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (replace(producer, adds=False), ErrorCode.INVALID_TXN_STATE),
    ]
    for other, error in wrong:
        assert await scene.hold(lease, other, scene.at(0, 1)) is error
    assert (await scene.pending("a"), scene.lost, scene.commits_counted("refused")) == (set(), [], 3)


async def test_a_fenced_lease_holds_nothing_and_is_told(scene: Scene) -> None:
    old, producer = await scene.take("a"), await scene.producer()
    new = await scene.take("a")
    fenced = await scene.hold(old, producer, scene.at(0, 1))
    assert isinstance(fenced, OffsetCommitResult) and fenced.fenced
    assert scene.lost == [(old, ErrorCode.NOT_COORDINATOR)]
    assert isinstance(await scene.hold(new, producer, scene.at(1, 1)), OffsetCommitResult)
    assert await scene.pending("a") == {1}


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (MetadataUnavailableError("the connection was lost"), ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (BadInputError("a value that the store does not take"), ErrorCode.INVALID_REQUEST),
        (KeyError("a bug"), ErrorCode.COORDINATOR_NOT_AVAILABLE),
    ],
)
async def test_a_call_that_fails_ends_alone_and_its_group_stays(
    scene: Scene, failure: Exception, error: ErrorCode
) -> None:
    lease, producer = await scene.take("a"), await scene.producer()
    scene.transactions.failure = failure
    assert await scene.hold(lease, producer, scene.at(0, 1)) is error
    scene.transactions.failure = None
    assert isinstance(await scene.hold(lease, producer, scene.at(1, 1)), OffsetCommitResult)
    assert (scene.lost, await scene.pending("a"), scene.commits_counted("failed")) == ([], {1}, 1)


async def test_a_group_is_settled_when_its_offsets_are_held(scene: Scene) -> None:
    a, b, producer = await scene.take("a"), await scene.take("b"), await scene.producer()
    scene.transactions.gate.clear()
    for partition in range(2):  # one under way, one behind it
        scene.hold(a, producer, scene.at(partition, 1))
    await asyncio.sleep(0)
    async with asyncio.timeout(1):
        await scene.commits.settled(b.group_id)
    waiting = asyncio.create_task(scene.commits.settled(a.group_id))
    await asyncio.sleep(0.02)
    assert not waiting.done()
    scene.transactions.gate.set()
    await waiting
    assert await scene.pending("a") == {0, 1}


async def test_a_caller_who_goes_away_leaves_his_offsets_to_be_held_and_a_drain_waits_for_them(scene: Scene) -> None:
    lease, producer = await scene.take("a"), await scene.producer()
    scene.transactions.gate.clear()
    gone = [scene.hold(lease, producer, scene.at(partition, 5)) for partition in range(2)]
    await asyncio.sleep(0.01)
    for each in gone:
        each.cancel()
    draining = asyncio.create_task(scene.commits.drain())
    await asyncio.sleep(0.02)
    assert not draining.done()
    scene.transactions.gate.set()
    await draining
    assert await scene.pending("a") == {0, 1}
    assert await scene.commits.add(lease, [scene.at(3, 1)], producer) is ErrorCode.NOT_COORDINATOR


async def test_a_closed_one_leaves_nobody_waiting(scene: Scene) -> None:
    lease, producer = await scene.take("a"), await scene.producer()
    scene.transactions.gate.clear()
    held = [scene.hold(lease, producer, scene.at(partition, 5)) for partition in range(2)]
    await asyncio.sleep(0.01)
    async with asyncio.timeout(5):
        await scene.commits.close()
        assert await asyncio.gather(*held) == [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 2


async def test_above_the_bound_a_producer_is_told_to_come_again(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_commits, "BYTES_WAITING_MAX", 3 * offset_commits.OFFSET_BYTES)
    lease, producer = await scene.take("a"), await scene.producer()
    scene.transactions.gate.clear()
    waiting = [scene.hold(lease, producer, scene.at(partition, 1)) for partition in range(3)]
    await asyncio.sleep(0.01)
    assert await scene.commits.add(lease, [scene.at(3, 1)], producer) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    scene.transactions.gate.set()
    await asyncio.gather(*waiting)
    assert isinstance(await scene.commits.add(lease, [scene.at(3, 1)], producer), OffsetCommitResult)
