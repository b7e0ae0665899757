"""The metadata service as a process reaches it: across a network, with faults. `stores.py` has the object stores.

A call is carried out on the far side, in the world's process. It goes on when the caller is killed meanwhile, and it
may happen after the caller was told that the answer is lost. (`storage/wrappers/faulty.py` strikes inside the caller
and cannot do either, so it is not used here.) The far side is the real `MemoryMetadata` and `MemoryStore`; above the
store is the real `Retrying`, as in an agent's own stack.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from metadata.configs.changes import Changes, TopicDecision
from metadata.contract.deletion import DeadFile, DeadWaiting
from metadata.contract.errors import MetadataUnavailableError
from metadata.contract.files import FileInfo, L0File
from metadata.contract.l0_commit import CommitInDoubtError, CommitL0, CommitRefusedError, Committed, ProducerState
from metadata.contract.leases import AgentAddress, AgentInfo, WriterFencedError, WriterLease
from metadata.contract.leveled import LeveledExtent
from metadata.contract.readers import LeveledWindow
from metadata.contract.store import ClusterIdentity
from metadata.contract.tail import Cursor, Snapshot, Tail
from metadata.contract.topics import Topic, Watermarks
from metadata.groups.contract import ExpiredGroups, GroupLease
from metadata.memory.store import MemoryMetadata
from metadata.rules.history import History
from metadata.security.contract import SecurityState
from metadata.transactions.contract import AbortedTransaction
from security.acls.values import Acl, AclFilter
from security.scram import Mechanism, ScramCredential
from tests.simulation.faults import Fault, Faults, Path
from tests.simulation.loop import Process, SimulationLoop
from wire.error_codes import ErrorCode

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Fate:
    """The fate of one call."""

    acts_ms: float | None
    """When the far side carries it out; None: never."""
    told_ms: float
    """When the caller gets a result, even if only the news that the answer is lost."""
    is_lost: bool = False
    """The caller gets an error, whether or not the call was carried out."""


class FarSide:
    """Calls across a network. `doubts` builds the error of a lost answer, `refusals` the error of a call never made."""

    def __init__(self, loop: SimulationLoop, process: Process, faults: Faults) -> None:
        self.loop = loop
        self.process = process
        self.faults = faults

    async def call(self, fate: Fate, act: Callable[[], Coroutine[Any, Any, T]], lost: Callable[[], Exception]) -> T:
        answer: asyncio.Future[T] = self.loop.create_future()
        outside = self.loop.outside
        if fate.acts_ms is not None:
            self.loop.after(fate.acts_ms, outside, self._act, fate, act, answer)
        if fate.is_lost:
            self.loop.after(fate.told_ms, outside, self._tell, answer, None, lost())
        return await answer

    def _act(self, fate: Fate, act: Callable[[], Coroutine[Any, Any, T]], answer: asyncio.Future[T]) -> None:
        result: T | None = None
        error: Exception | None = None
        try:
            result = finish(act())
        except Exception as raised:
            error = raised
        if not fate.is_lost:
            delay_ms = fate.told_ms - (fate.acts_ms or 0)
            self.loop.after(max(delay_ms, 0), self.loop.outside, self._tell, answer, result, error)

    def _tell(self, answer: asyncio.Future[Any], result: object, error: Exception | None) -> None:
        if answer.done() or self.process.is_dead:
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(result)

    def fate(self, *, slow: bool, call_lost: bool, answer_lost: bool, late: bool) -> Fate:
        between = self.faults.between
        acts_ms = between(0.1, 8)
        if slow:
            acts_ms = between(300, 4000)
        elif self.faults.rng.random() < 0.1:
            acts_ms = between(8, 120)  # waits for a lock, or is just late
        told_ms = acts_ms + between(0.1, 8)
        if call_lost:
            return Fate(None, told_ms, is_lost=True)
        if late:
            return Fate(told_ms + between(1, 1500), told_ms, is_lost=True)
        return Fate(acts_ms, told_ms, is_lost=answer_lost)


async def given(hint: asyncio.Event, timeout_ms: float) -> bool:
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            await hint.wait()
    except TimeoutError:
        return False
    hint.clear()
    return True


def finish(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that only yields, without a pause: on the far side it is atomic."""
    while True:
        try:
            coroutine.send(None)
        except StopIteration as end:
            return end.value


def _lost(is_unreached: bool) -> Exception:
    """The error of a commit that got no answer."""
    if is_unreached:
        return MetadataUnavailableError("connection refused")
    return CommitInDoubtError("the answer was lost")


class SimulatedMetadata(FarSide):
    """`metadata.contract.store.MetadataStore` as one agent has it."""

    def __init__(
        self,
        loop: SimulationLoop,
        process: Process,
        faults: Faults,
        server: MemoryMetadata,
        note: Callable[..., None],
        listening: dict[SimulatedMetadata, None],
    ) -> None:
        super().__init__(loop, process, faults)
        self.server = server
        self._note = note
        self._listening = listening
        self._news, self._agents = asyncio.Event(), asyncio.Event()
        self._doubtful: dict[str, None] = {}
        self.cut_off_until_ms = 0.0
        """Until then this agent alone reaches nothing here."""
        self.own_groups: Any = None
        self.own_transactions: Any = None
        """Of runs with transactions (`transactions/services.py`)."""
        self.delay_of_commit: Callable[[CommitL0], float] = lambda _: 0.0
        """In ms. 0: as any call."""
        self.on_commit: Callable[[CommitL0], None] = lambda _: None
        """Called before the agent sends a commit."""
        self.on_committed: Callable[[Committed], None] = lambda _: None
        """Called when it has the answer."""

    @property
    def agents(self) -> Any:
        """It implements by itself the calls that agents make to every part."""
        return self

    readers = operators = deletion = compactors = agents

    @property
    def groups(self) -> Any:
        return self.own_groups if self.own_groups is not None else self

    @property
    def security(self) -> SimulatedSecurity:
        return SimulatedSecurity(self)

    @property
    def transactions(self) -> Any:
        return self.own_transactions if self.own_transactions is not None else NoTransactions()

    async def open(self) -> None:
        self._listening[self] = None

    async def close(self) -> None:
        self._listening.pop(self, None)

    # ---- the log

    async def commit_l0(self, request: CommitL0) -> Committed:
        self.on_commit(request)
        fate = self.fate_of_call(weight=2.5)
        if request.key in self._doubtful and self.faults.rng.random() < 0.4:
            # A server that lost an answer often takes no connection at first.
            fate = Fate(None, self.faults.between(0.1, 8), is_lost=True)
        if delay_ms := self.delay_of_commit(request):
            fate = Fate(delay_ms, delay_ms + 5)
        is_late = fate.is_lost and fate.acts_ms is not None and fate.acts_ms > fate.told_ms
        if fate.is_lost:
            self._note("commit in doubt", key=request.key, acts=fate.acts_ms is not None)
        # Only a call that never acts may be told as one that did not reach the server.
        is_unreached = fate.is_lost and fate.acts_ms is None and self.faults.rng.random() < 0.5

        async def act() -> Committed:
            return await self._commit(request, is_late=is_late)

        try:
            committed = await self.call(fate, act, lambda: _lost(is_unreached))
            self.on_committed(committed)
            return committed
        except MetadataUnavailableError:
            is_doubtful = request.key in self._doubtful
            self.faults.count(Path.DOUBT_UNREACHED if is_doubtful else Path.COMMIT_UNREACHED)
            raise
        except CommitInDoubtError:
            self._doubtful[request.key] = None
            raise

    async def _commit(self, request: CommitL0, *, is_late: bool) -> Committed:
        """Runs on the far side, and keeps the books."""
        known = request.key in self.server.database.file_ids
        try:
            committed = await self.server.agents.commit_l0(request)
        except WriterFencedError:
            self.faults.count(Path.WRITER_FENCED)
            self._note("commit fenced", key=request.key)
            raise
        except CommitRefusedError as error:
            if known:
                self.faults.count(Path.ABORTED_KEY_REFUSED)
            self._note("commit refused", key=request.key, why=str(error))
            raise
        if known and is_late:
            self.faults.count(Path.COMMIT_CAME_LATE)
        elif request.key in self._doubtful:
            self.faults.count(Path.COMMIT_WAS_DONE if known else Path.COMMIT_WAS_LOST)
        if not known:
            self._count_results(request, committed)
        self._note("commit", key=request.key, known=known, offsets=[r.base_offset for r in committed.results])
        return committed

    def _count_results(self, request: CommitL0, committed: Committed) -> None:
        stored: set[tuple[int, int, int]] = set()
        for batch, result in zip(request.batches, committed.results, strict=True):
            what = (batch.partition_id, batch.producer_id, batch.base_sequence)
            if result.duplicate:
                self.faults.count(Path.DUPLICATE_IN_FILE if what in stored else Path.DUPLICATE_ANSWERED)
            elif result.error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                self.faults.count(Path.OUT_OF_ORDER_REFUSED)
            elif result.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                self.faults.count(Path.PARTITION_GONE)
            else:
                stored.add(what)

    async def abort_file(self, key: str) -> bool:
        """Runs on the far side, and keeps the books."""

        async def act() -> bool:
            is_known = key in self.server.database.file_ids
            is_aborted = await self.server.deletion.abort_file(key)
            if not is_known:
                self.faults.count(Fault.KEY_ABORTED)
            elif not is_aborted:
                self.faults.count(Path.ABORT_REFUSED)
            return is_aborted

        return await self.ask(act)

    async def watermarks(self, partition_ids: Sequence[int]) -> Mapping[int, Watermarks]:
        return await self.ask(lambda: self.server.agents.watermarks(partition_ids))

    async def snapshot(self) -> Snapshot:
        return await self.ask(self.server.agents.snapshot)

    async def live_files(self, snapshot: Snapshot, after: int) -> Sequence[L0File]:
        return await self.ask(lambda: self.server.agents.live_files(snapshot, after))

    async def tail(self, cursor: Cursor) -> Tail:
        tail = await self.ask(lambda: self.server.agents.tail(cursor))
        if tail.cold:
            self.faults.count(Path.STARTED_COLD)
            self._note("tail is cold")
        return tail

    async def wait_for_news(self, timeout_ms: float) -> None:
        await given(self._news, timeout_ms)

    def hears_news(self) -> bool:
        return True

    async def notify(self) -> None:
        self._hint_others(lambda other: other._news)

    async def wait_for_agents(self, timeout_ms: float) -> bool:
        return await given(self._agents, timeout_ms)

    async def announce_agents(self) -> None:
        self._hint_others(lambda other: other._agents)

    @property
    def is_cut_off(self) -> bool:
        return self.loop.now_ms < self.cut_off_until_ms and not self.faults.are_over

    def _hint_others(self, of: Callable[[SimulatedMetadata], asyncio.Event]) -> None:
        for other in self._listening:
            if other.is_cut_off or self.is_cut_off:
                continue
            if other is not self and not self.faults.strikes(Fault.HINT_LOST):
                self.loop.after(self.faults.between(0.1, 8), other.process, of(other).set)

    # ---- all else

    async def cluster_identity(self) -> ClusterIdentity:
        return await self.ask(self.server.cluster_identity)

    async def bind_store(self) -> None:
        await self.ask(self.server.bind_store)

    async def register_agent(self, address: AgentAddress, *, instead_of: WriterLease | None = None) -> WriterLease:
        return await self.ask(lambda: self.server.agents.register_agent(address, instead_of=instead_of))

    async def heartbeat(self, lease: WriterLease, *, draining: bool = False) -> int:
        return await self.ask(lambda: self.server.agents.heartbeat(lease, draining=draining))

    async def unregister_agent(self, lease: WriterLease) -> None:
        await self.ask(lambda: self.server.agents.unregister_agent(lease))

    async def live_agents(self) -> Sequence[AgentInfo]:
        return await self.ask(self.server.agents.live_agents)

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int,
        configs: Mapping[str, str],
        replication_factor: int = 1,
        cluster_partitions_max: int | None = None,
    ) -> Topic:
        return await self.ask(
            lambda: self.server.agents.create_topic(
                name,
                partitions=partitions,
                configs=configs,
                replication_factor=replication_factor,
                cluster_partitions_max=cluster_partitions_max,
            )
        )

    async def delete_topic(self, topic_id: uuid.UUID) -> None:
        await self.ask(lambda: self.server.agents.delete_topic(topic_id))

    async def alter_configs(self, topic_id: uuid.UUID, changes: Changes | TopicDecision) -> Topic:
        return await self.ask(lambda: self.server.agents.alter_configs(topic_id, changes))

    async def create_partitions(
        self, topic_id: uuid.UUID, count: int, *, cluster_partitions_max: int | None = None
    ) -> Topic:
        return await self.ask(
            lambda: self.server.agents.create_partitions(topic_id, count, cluster_partitions_max=cluster_partitions_max)
        )

    async def list_topics(self) -> Sequence[Topic]:
        return await self.ask(self.server.agents.list_topics)

    async def allocate_producer_ids(self, count: int) -> range:
        return await self.ask(lambda: self.server.agents.allocate_producer_ids(count))

    async def files(self, *, after_file_id: int = 0, limit: int = 1000) -> Sequence[FileInfo]:
        return await self.ask(lambda: self.server.operators.files(after_file_id=after_file_id, limit=limit))

    async def producer_states(self) -> Sequence[ProducerState]:
        return await self.ask(self.server.agents.producer_states)

    # ---- readers, groups and the log start

    async def leveled_extents(self, partition_id: int, offset: int, *, limit: int = 64) -> Sequence[LeveledExtent]:
        return await self.ask(lambda: self.server.readers.leveled_extents(partition_id, offset, limit=limit))

    async def leveled_window(self, partition_id: int, offset: int, *, limit: int = 64) -> LeveledWindow:
        return await self.ask(lambda: self.server.readers.leveled_window(partition_id, offset, limit=limit))

    async def leveled_extents_by_timestamp(
        self, partition_id: int, timestamp_ms: int, *, from_offset: int = 0, limit: int = 16
    ) -> Sequence[LeveledExtent]:
        look_up = self.server.readers.leveled_extents_by_timestamp
        return await self.ask(lambda: look_up(partition_id, timestamp_ms, from_offset=from_offset, limit=limit))

    async def largest_leveled_timestamp(self, partition_id: int) -> LeveledExtent | None:
        return await self.ask(lambda: self.server.readers.largest_leveled_timestamp(partition_id))

    async def aborted_transactions(self, bases: Mapping[int, int]) -> Sequence[AbortedTransaction]:
        return await self.ask(lambda: self.server.agents.aborted_transactions(bases))

    async def delete_records(self, partition_id: int, offset: int) -> int:
        return await self.ask(lambda: self.server.agents.delete_records(partition_id, offset))

    async def fenced_leases(self, leases: Sequence[GroupLease]) -> Sequence[GroupLease]:
        return await self.ask(lambda: self.server.groups.fenced_leases(leases))

    async def groups_with_members(self, *, after: str | None = None, limit: int = 10_000) -> Sequence[str]:
        return await self.ask(lambda: self.server.groups.groups_with_members(after=after, limit=limit))

    async def expire_groups(self, *, offsets_retention_ms: int, idle_group_ms: int) -> ExpiredGroups:
        return await self.ask(
            lambda: self.server.groups.expire_groups(
                offsets_retention_ms=offsets_retention_ms, idle_group_ms=idle_group_ms
            )
        )

    # ---- the janitor

    async def now_ms(self) -> int:
        return await self.ask(self.server.now_ms)

    async def history(self) -> History:
        return await self.ask(self.server.deletion.history)

    async def dead_files(self, *, grace_ms: int, limit: int = 1000) -> Sequence[DeadFile]:
        return await self.ask(lambda: self.server.deletion.dead_files(grace_ms=grace_ms, limit=limit))

    async def dead_waiting(self) -> DeadWaiting:
        return await self.ask(self.server.deletion.dead_waiting)

    async def files_deleted(self, file_ids: Sequence[int]) -> None:
        await self.ask(lambda: self.server.deletion.files_deleted(file_ids))

    async def forget_rows(self, *, before_ms: int) -> int:
        return await self.ask(lambda: self.server.deletion.forget_rows(before_ms=before_ms))

    async def known_keys(self, keys: Sequence[str]) -> frozenset[str]:
        return await self.ask(lambda: self.server.deletion.known_keys(keys))

    async def writers_at_work(self) -> Mapping[int, int]:
        return await self.ask(self.server.deletion.writers_at_work)

    async def ask(self, act: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return await self.call(self.fate_of_call(), act, lambda: MetadataUnavailableError("no answer"))

    def fate_of_call(self, weight: float = 1.0) -> Fate:
        faults = self.faults
        away = self.is_cut_off or faults.is_away(Fault.METADATA_DOWN, self.loop.now_ms)
        call_lost = away or faults.strikes(Fault.METADATA_CALL_LOST, weight)
        late = not call_lost and faults.strikes(Fault.METADATA_LATE, weight)
        answer_lost = not call_lost and not late and faults.strikes(Fault.METADATA_ANSWER_LOST, weight)
        slow = faults.strikes(Fault.METADATA_SLOW, weight)
        return self.fate(call_lost=call_lost, late=late, answer_lost=answer_lost, slow=slow)


class SimulatedSecurity:
    """The calls about users, ACLs and quotas that an agent makes by itself."""

    def __init__(self, metadata: SimulatedMetadata) -> None:
        self._ask, self._server = metadata.ask, metadata.server

    async def security(self) -> SecurityState:
        return await self._ask(self._server.security.security)

    async def users(self, names: Sequence[str]) -> Mapping[str, Mapping[Mechanism, ScramCredential]]:
        return await self._ask(lambda: self._server.security.users(names))

    async def exclude_older_programs(self) -> None:
        await self._ask(self._server.security.exclude_older_programs)

    async def create_acls(self, acls: Sequence[Acl]) -> int:
        return await self._ask(lambda: self._server.security.create_acls(acls))

    async def delete_acls(self, filters: Sequence[AclFilter]) -> tuple[int, Sequence[Sequence[Acl]]]:
        return await self._ask(lambda: self._server.security.delete_acls(filters))

    async def agents_behind(self, change_id: int) -> Sequence[AgentInfo]:
        return await self._ask(lambda: self._server.security.agents_behind(change_id))

    async def report_seen(self, lease: WriterLease, change_id: int) -> None:
        await self._ask(lambda: self._server.security.report_seen(lease, change_id))

    async def exchange_demands(self, lease: WriterLease, demands: Mapping[int, float]) -> Sequence[Mapping[int, float]]:
        return await self._ask(lambda: self._server.security.exchange_demands(lease, demands))


class NoTransactions:
    """An older program is at work: no client begins a transaction."""

    async def enable(self) -> bool:
        return False
