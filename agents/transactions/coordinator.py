"""The coordinator of transactions of one agent: whose id is whose, one request of an id at a time.

Any state lies in the metadata store; the agent keeps only the *lease* of each id that it took, whose epoch goes with
every write. An id is taken when it is first asked for. A write that the store refuses as another coordinator's is
answered NOT_COORDINATOR, and the lease is forgotten. It is not tried again under a new lease: the request may be old by
then. Its client may have asked the other coordinator meanwhile and begun its next transaction, which a client of the
first protocol does under the same epoch (KAFKA-17754). So the client asks again, if it still waits.

After a write whose outcome is unknown the lease is forgotten too: the next request takes the id again, which waits for
the lost call or fences it. Ends are repeated until they are answered (`ends.py`).

Requests of one id are carried out one after the other, in the order in which they came, also when their client has
gone: the client's next connection must not overtake them. An agent that stops serves the ids that it holds until the
others know that it goes, ends what is under way, and answers NOT_COORDINATOR from then on.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

from agents.features import Features
from agents.request_context import client_principal
from agents.transactions.ends import Ends, ProducerIds
from agents.transactions.ownership import owner
from metadata.contract.errors import MetadataUnavailableError
from metadata.contract.leases import BEAT_MS, AgentInfo, WriterFencedError, WriterLease
from metadata.transactions.contract import (
    PRODUCER_EPOCH_MAX,
    EndTransaction,
    EndTransactions,
    InitProducer,
    ProducerInitialised,
    TransactionalIdTooLongError,
    TransactionEnded,
    TransactionInfo,
    TransactionLease,
    TransactionMetadata,
    TransactionsEnded,
)
from metadata.transactions.rules import check_transactional_id
from runtime.errors import SiltstoneError
from runtime.logging import get_logger
from runtime.runtime import Runtime
from wire.error_codes import ErrorCode

_log = get_logger(__name__)

LEASES_MAX = 100_000
"""Ids whose leases are kept. One more costs the id that was not used for longest another take."""
REQUESTS_MAX = 20_000
"""Requests that wait or are carried out. Those of clients that have gone count."""
INITS_MAX = 4
"""Tries to give a producer its epoch: each after the first follows the end of a transaction that stood in the way."""

T = TypeVar("T")


class TransactionRefusedError(SiltstoneError):
    """The request is answered `code`."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class Initialised(NamedTuple):
    error: int
    producer_id: int = -1
    producer_epoch: int = -1


@dataclass(slots=True)
class _Turns:
    """The requests of one id."""

    lock: asyncio.Lock
    requests: int = 0


class Members(Protocol):
    """`agents/membership.py`."""

    @property
    def current(self) -> WriterLease: ...
    @property
    def node_id(self) -> int: ...
    @property
    def agents(self) -> Sequence[AgentInfo]: ...
    @property
    def version(self) -> int: ...
    @property
    def lease_runs(self) -> bool: ...
    def now_ms(self) -> int: ...


class TransactionCoordinator:
    def __init__(
        self,
        *,
        metadata: TransactionMetadata,
        membership: Members,
        producer_ids: ProducerIds,
        partitions_max: int,
        features: Features,
        on_ended: Callable[[EndTransactions, TransactionsEnded], None],
        runtime: Runtime,
    ) -> None:
        """`on_ended` is called before the clients of the ended transactions are answered."""
        self.metadata = metadata
        self._features = features
        self.usable = asyncio.Event()
        """Set once transactions may be used."""
        self._membership = membership
        self._producer_ids = producer_ids
        self._partitions_max = partitions_max
        self._clock = runtime.clock
        self._metrics = runtime.metrics.transactions
        self._leases: OrderedDict[str, TransactionLease] = OrderedDict()
        """The one that was not used for longest first."""
        self._turns: dict[str, _Turns] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stopped = False
        self._asking: asyncio.Task[None] | None = None
        self._ends = Ends(
            metadata=metadata, identity=membership, producer_ids=producer_ids, on_ended=on_ended, runtime=runtime
        )

    # ---- life

    async def start(self) -> None:
        self._ends.start()
        if not await self._enable():
            self._asking = asyncio.create_task(self._enable_with_beats(), name="enable transactions")

    async def drain(self) -> None:
        """Take no more requests, and carry out those that came. Call it when the others know that this agent goes."""
        self._stopped = True
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def close(self) -> None:
        self._stopped = True
        tasks = [*self._tasks, *([self._asking] if self._asking is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._ends.close()

    async def _enable(self) -> bool:
        try:
            self._features.transactions = await self.metadata.enable()
            self._features.transactions_asked = True
        except SiltstoneError as error:  # the store is away, or has not given us the right yet: all else goes on
            _log.warning("not known whether transactions may be used, asked again soon", error=str(error))
        if self.enabled:
            self.usable.set()
        return self.enabled

    async def _enable_with_beats(self) -> None:
        while not self.enabled:
            await self._clock.sleep_ms(BEAT_MS)
            try:
                await self._enable()
            except Exception:
                _log.exception("not known whether transactions may be used, asked again soon")

    @property
    def enabled(self) -> bool:
        """Transactions may be used."""
        return self._features.transactions

    # ---- who owns what

    def owner(self, transactional_id: str) -> AgentInfo | None:
        """By this agent's list; None if no agent is alive."""
        return owner(transactional_id, self._membership.agents)

    def owns(self, transactional_id: str) -> bool:
        if self._stopped or not self._membership.lease_runs:
            return False
        found = self.owner(transactional_id)
        return found is not None and found.writer_id == self._membership.node_id

    @property
    def lease_runs(self) -> bool:
        """While it does not, this agent owns nothing and does not know who does."""
        return self._membership.lease_runs

    def _serves(self, transactional_id: str) -> bool:
        node_id = self._membership.node_id
        if all(agent.writer_id != node_id for agent in self._membership.agents):
            return not self._stopped and transactional_id in self._leases  # we drain: others do not know it yet
        return self.owns(transactional_id)

    # ---- requests

    async def init(
        self, transactional_id: str, *, timeout_ms: int, producer_id: int = -1, producer_epoch: int = -1
    ) -> Initialised:
        """InitProducerId. An ongoing transaction of the id is aborted first."""

        async def work() -> Initialised:
            try:
                return await self._init(transactional_id, timeout_ms, producer_id, producer_epoch)
            except (MetadataUnavailableError, WriterFencedError) as error:
                raise self._in_doubt(transactional_id, error) from error

        try:
            return await self._in_turn(transactional_id, work)
        except TransactionRefusedError as refused:
            return Initialised(int(refused.code))

    async def add_partitions(
        self, transactional_id: str, *, producer_id: int, producer_epoch: int, partition_ids: Sequence[int]
    ) -> int:
        """AddPartitionsToTxn. Returns an error, as the newest version has it."""

        async def add(lease: TransactionLease) -> int:
            return await self.metadata.add_partitions(
                lease,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                partition_ids=partition_ids,
                partitions_max=self._partitions_max,
            )

        return await self._written(transactional_id, add)

    async def add_group(self, transactional_id: str, *, producer_id: int, producer_epoch: int, group_id: str) -> int:
        """AddOffsetsToTxn. As `add_partitions`."""

        async def add(lease: TransactionLease) -> int:
            return await self.metadata.add_group(
                lease, producer_id=producer_id, producer_epoch=producer_epoch, group_id=group_id
            )

        return await self._written(transactional_id, add)

    async def end(
        self, transactional_id: str, *, producer_id: int, producer_epoch: int, commit: bool, client_version: int
    ) -> TransactionEnded:
        """EndTxn."""
        # No such producer is, and no marker of it could be written.
        if producer_id < 0:
            return _not_ended(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if not 0 <= producer_epoch <= PRODUCER_EPOCH_MAX:
            return _not_ended(ErrorCode.PRODUCER_FENCED)

        async def work() -> TransactionEnded:
            async with self._held(transactional_id) as lease:
                end = EndTransaction(
                    transactional_id=transactional_id,
                    producer_id=producer_id,
                    producer_epoch=producer_epoch,
                    commit=commit,
                    marker=b"",
                    client_version=client_version,
                    lease=lease,
                )
                ended = await self._ends.end(end, coordinator_epoch=lease.epoch)
                self._judge(transactional_id, ended.error)
                return ended

        try:
            return await self._in_turn(transactional_id, work)
        except TransactionRefusedError as refused:
            return _not_ended(refused.code)

    async def abort(self, seen: TransactionInfo, *, overdue_ms: int | None = None) -> TransactionEnded:
        """Abort the ongoing transaction that was seen, and no later one, for somebody who is not its client.

        `overdue_ms`: only if its timeout was over this long ago. Whoever aborts it need not be its coordinator.
        """
        end = EndTransaction(
            transactional_id=seen.transactional_id,
            producer_id=seen.producer_id,
            producer_epoch=seen.producer_epoch,
            commit=False,
            marker=b"",
            fences=True,
            txn_seq=seen.txn_seq,
            overdue_ms=overdue_ms,
        )
        return await self._ends.end(end, coordinator_epoch=seen.coordinator_epoch)

    # ---- inside

    async def _init(self, transactional_id: str, timeout_ms: int, producer_id: int, producer_epoch: int) -> Initialised:
        """Raises MetadataUnavailableError, WriterFencedError, TransactionRefusedError."""
        for _ in range(INITS_MAX):
            self._check_served(transactional_id)
            request = InitProducer(
                transactional_id=transactional_id,
                timeout_ms=timeout_ms,
                new_producer_id=await self._producer_ids.take(),
                producer_id=producer_id,
                producer_epoch=producer_epoch,
            )
            made = await self.metadata.init_producer(request, owner=self._membership.current)
            self._keep(made.lease)
            if made.error or made.ongoing_txn_seq is None:
                return Initialised(made.error, made.producer_id, made.producer_epoch)
            ended = await self._end_before(transactional_id, made, made.ongoing_txn_seq)
            # Another end came first: then this finds out what is there now.
            if ended.error not in (0, int(ErrorCode.INVALID_TXN_STATE)):
                self._judge(transactional_id, ended.error)
                return Initialised(ended.error)
            if producer_id >= 0 and not ended.error:
                producer_id, producer_epoch = ended.producer_id, ended.producer_epoch
        return Initialised(int(ErrorCode.CONCURRENT_TRANSACTIONS))

    async def _end_before(self, transactional_id: str, made: ProducerInitialised, txn_seq: int) -> TransactionEnded:
        end = EndTransaction(
            transactional_id=transactional_id,
            producer_id=made.producer_id,
            producer_epoch=made.producer_epoch,
            commit=False,
            marker=b"",
            lease=made.lease,
            fences=True,
            txn_seq=txn_seq,
        )
        ended = await self._ends.end(end, coordinator_epoch=made.lease.epoch)
        if not ended.error:
            # An operator ends a transaction without partitions in this way too.
            _log.info(
                "transaction aborted, because a producer of its id began",
                transactional_id=transactional_id,
                producer_id=made.producer_id,
                principal=client_principal(),
            )
        return ended

    async def _written(self, transactional_id: str, write: Callable[[TransactionLease], Awaitable[int]]) -> int:
        async def work() -> int:
            async with self._held(transactional_id) as lease:
                try:
                    error = await write(lease)
                except MetadataUnavailableError as away:
                    raise self._in_doubt(transactional_id, away) from away
                self._judge(transactional_id, error)
                return error

        try:
            return await self._in_turn(transactional_id, work)
        except TransactionRefusedError as refused:
            return int(refused.code)

    @asynccontextmanager
    async def _held(self, transactional_id: str) -> AsyncGenerator[TransactionLease]:
        """The lease of the id, which is taken first if needed. Raises TransactionRefusedError."""
        self._check_served(transactional_id)
        lease = self._leases.get(transactional_id)
        if lease is None:
            version = self._membership.version
            try:
                lease = await self.metadata.take_transaction(transactional_id, owner=self._membership.current)
            except (MetadataUnavailableError, WriterFencedError) as error:
                raise self._in_doubt(transactional_id, error) from error
            if lease is None:
                raise TransactionRefusedError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, "there is no such id")
            # The call took time: by now another agent may own the id, or have owned it and given it back.
            if version != self._membership.version:
                self._check_served(transactional_id)
        self._keep(lease)
        yield lease

    def _check_served(self, transactional_id: str) -> None:
        """Raises TransactionRefusedError."""
        if not self._serves(transactional_id):
            self._leases.pop(transactional_id, None)
            raise TransactionRefusedError(ErrorCode.NOT_COORDINATOR, "another agent coordinates the transactional id")

    def _keep(self, lease: TransactionLease) -> None:
        self._leases[lease.transactional_id] = lease
        self._leases.move_to_end(lease.transactional_id)
        if len(self._leases) > LEASES_MAX:
            self._leases.popitem(last=False)

    def _judge(self, transactional_id: str, error: int) -> None:
        if error == int(ErrorCode.NOT_COORDINATOR):
            self._metrics.fenced_total.inc()
            _log.info("transactional id given up, another agent took it", transactional_id=transactional_id)
            self._leases.pop(transactional_id, None)

    def _in_doubt(self, transactional_id: str, error: Exception) -> TransactionRefusedError:
        self._leases.pop(transactional_id, None)
        _log.warning("transactional id given up", transactional_id=transactional_id, error=str(error))
        return TransactionRefusedError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error))

    async def _in_turn(self, transactional_id: str, work: Callable[[], Awaitable[T]]) -> T:
        """Carry it out after the requests of the id that came before. Raises TransactionRefusedError."""
        try:
            check_transactional_id(transactional_id)
        except TransactionalIdTooLongError as error:
            raise TransactionRefusedError(ErrorCode.INVALID_REQUEST, str(error)) from error
        self._check_served(transactional_id)
        if len(self._tasks) >= REQUESTS_MAX:
            raise TransactionRefusedError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "too many requests wait")
        turns = self._turns.setdefault(transactional_id, _Turns(asyncio.Lock()))
        turns.requests += 1

        async def alone() -> T:
            try:
                async with turns.lock:
                    return await work()
            finally:
                turns.requests -= 1
                if not turns.requests:
                    del self._turns[transactional_id]

        task = asyncio.create_task(alone(), name="transaction")
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return await asyncio.shield(task)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # the client may be gone: then nobody else hears of it


def _not_ended(error: ErrorCode) -> TransactionEnded:
    return TransactionEnded(int(error), -1, -1)
