"""Clients of the second protocol (KIP-890), by hand, because no client library at hand speaks it: a producer, a source
of records, and a mover, which reads committed records and moves them on, in one transaction with its offsets.

Each transactional id is one seat. A life of it ends when its producer is refused; now and then the next one begins
while the last one goes on and does not know it.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

from tests.integration.faults.transactions.asking import GROUP, PATIENCE_S, TRANSACTION, Asking, Response
from tests.integration.faults.transactions.fetching import COMMITTED, fetch, records_of
from tests.integration.faults.transactions.history import Place, Position, Transaction
from tests.integration.faults.transactions.plan import Ending, Plan
from wire.batch import ProducerStamp
from wire.error_codes import ErrorCode
from wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from wire.records import NewRecord, build_batch
from wire.schema import Message

PRODUCE_MS = 2_000
HAUNTED_SHARE = 0.05


class RefusedError(Exception):
    """The transaction cannot go on."""

    def __init__(self, what: str, code: int) -> None:
        super().__init__(f"{what}: {ErrorCode(code).name}")


class Producer:
    """It repeats what is not answered, as clients do: the same batch under the same sequence."""

    def __init__(self, asking: Asking, transactional_id: str, timeout_ms: int) -> None:
        self._asking, self._id, self._timeout_ms = asking, transactional_id, timeout_ms
        self._producer = (-1, -1)
        self._sequences: dict[Place, int] = {}

    async def init(self) -> None:
        request = InitProducerIdRequest(transactional_id=self._id, transaction_timeout_ms=self._timeout_ms)
        made = await self._at_coordinator(request, InitProducerIdResponse, lambda it: it.error_code)
        if made.error_code:
            raise RefusedError("init", made.error_code)
        self._become(made.producer_id, made.producer_epoch)

    async def send(self, transaction: Transaction, records: Mapping[Place, Sequence[bytes]]) -> None:
        """One batch for each place, all acknowledged. Raises RefusedError."""
        waiting = {place: self._batch(place, values) for place, values in records.items()}
        deadline_s = time.monotonic() + PATIENCE_S
        while waiting:
            topics: dict[str, list[PartitionProduceData]] = {}
            for (topic, partition), batch in waiting.items():
                topics.setdefault(topic, []).append(PartitionProduceData(index=partition, records=batch))
            request = ProduceRequest(
                transactional_id=self._id,
                acks=-1,
                timeout_ms=PRODUCE_MS,
                topic_data=[TopicProduceData(name=name, partition_data=parts) for name, parts in topics.items()],
            )
            answer = await self._asking.anywhere(request, ProduceResponse)
            for topic in answer.responses:
                for part in topic.partition_responses:
                    place = (topic.name, part.index)
                    if not part.error_code:
                        del waiting[place]
                        if part.base_offset >= 0:  # of an old double there is none
                            values = enumerate(records[place], part.base_offset)
                            transaction.offsets |= {value: offset for offset, value in values}
                    elif not ErrorCode(part.error_code).retriable:
                        raise RefusedError("records", part.error_code)
            if waiting:
                assert time.monotonic() < deadline_s, f"{self._id} cannot send for {PATIENCE_S} s: {answer.responses}"
                await asyncio.sleep(0.1)

    async def send_offsets(self, group_id: str, positions: Mapping[Place, int]) -> None:
        """Raises RefusedError."""
        producer_id, epoch = self._producer
        topics: dict[str, list[TxnOffsetCommitRequestPartition]] = {}
        for (topic, partition), offset in positions.items():
            part = TxnOffsetCommitRequestPartition(
                partition_index=partition, committed_offset=offset, committed_metadata=""
            )
            topics.setdefault(topic, []).append(part)
        request = TxnOffsetCommitRequest(
            transactional_id=self._id,
            group_id=group_id,
            producer_id=producer_id,
            producer_epoch=epoch,
            member_id="",
            topics=[TxnOffsetCommitRequestTopic(name=name, partitions=parts) for name, parts in topics.items()],
        )

        def error_of(answer: TxnOffsetCommitResponse) -> int:
            return next((each.error_code for topic in answer.topics for each in topic.partitions if each.error_code), 0)

        answer = await self._asking.at_coordinator(GROUP, group_id, request, TxnOffsetCommitResponse, error_of)
        if code := error_of(answer):
            raise RefusedError("offsets", code)

    async def end(self, *, commit: bool) -> None:
        """Raises RefusedError."""
        producer_id, epoch = self._producer
        request = EndTxnRequest(
            transactional_id=self._id, producer_id=producer_id, producer_epoch=epoch, committed=commit
        )
        ended = await self._at_coordinator(request, EndTxnResponse, lambda it: it.error_code)
        if ended.error_code:
            raise RefusedError("commit" if commit else "abort", ended.error_code)
        self._become(ended.producer_id, ended.producer_epoch)

    # ---- inside

    def _become(self, producer_id: int, epoch: int) -> None:
        self._producer = (producer_id, epoch)
        self._sequences.clear()

    def _batch(self, place: Place, values: Sequence[bytes]) -> bytes:
        sequence = self._sequences.get(place, 0)
        self._sequences[place] = sequence + len(values)
        now_ms = int(time.time() * 1000)
        records = [NewRecord(now_ms, None, value) for value in values]
        return build_batch(records, producer=ProducerStamp(*self._producer, sequence), transactional=True)

    async def _at_coordinator(
        self, request: Message, response: type[Response], error_of: Callable[[Response], int]
    ) -> Response:
        return await self._asking.at_coordinator(TRANSACTION, self._id, request, response, error_of)


class Seat(ABC):
    """One transactional id."""

    def __init__(self, plan: Plan, name: str, ending: threading.Event, chance: random.Random) -> None:
        self.plan, self.name, self.chance = plan, name, chance
        self._ending = ending
        self._lives = 0
        self._successors: list[asyncio.Task[None]] = []

    @property
    def is_over(self) -> bool:
        return self._ending.is_set()

    async def run(self) -> None:
        try:
            while not self.is_over:
                await self._life()
                while self._successors:
                    await self._successors.pop()
        except Exception as error:  # every one is a finding
            self.plan.history.failed.append(f"{self.name}: {error!r}")
            raise

    @abstractmethod
    async def live(self, life: str, producer: Producer, asking: Asking) -> None:
        """Raises RefusedError."""

    def haunt(self) -> None:
        """Now and then the next life begins, and this one does not know."""
        if self.chance.random() < HAUNTED_SHARE:
            self.plan.history.count("haunted")
            self._successors.append(asyncio.create_task(self._life(), name=self.name))

    async def _life(self) -> None:
        self._lives += 1
        life = f"{self.name}.{self._lives}"
        asking = Asking(self.plan.addresses, self.chance)
        producer = Producer(asking, self.name, self.plan.timeout_ms)
        try:
            await producer.init()
            await self.live(life, producer, asking)
        except RefusedError as refused:
            self.plan.history.count(f"second: {refused}")
        finally:
            await asking.close()

    async def end(self, producer: Producer, transaction: Transaction) -> bool:
        """As chance has it. Returns whether it is committed. Raises RefusedError, and then it may be."""
        ending = self.plan.ending_of(self.chance)
        if ending is Ending.ABANDON:
            raise RefusedError("abandoned", 0)
        if ending is Ending.ABORT:
            await producer.end(commit=False)
            self.plan.history.count("second: aborted")
            return False
        transaction.asked_s = time.monotonic()
        await producer.end(commit=True)
        transaction.is_committed = True
        self.plan.history.count("second: committed")
        return True

    async def pause(self) -> None:
        await asyncio.sleep(self.plan.pause_s(self.chance))


class Source(Seat):
    """Writes records to several partitions of both topics."""

    async def live(self, life: str, producer: Producer, asking: Asking) -> None:
        for number in itertools.count():
            if self.is_over:
                return
            transaction = self.plan.history.begin(f"{life}/{number}")
            for _ in range(self.chance.randint(1, 2)):
                await producer.send(transaction, self.plan.new_records(self.chance, transaction))
            self.haunt()
            await self.end(producer, transaction)
            await self.pause()


class Mover(Seat):
    """Moves records of its own partitions on, and is no member of its group. What it read belongs to nobody else as
    long as its producer is not fenced."""

    def __init__(
        self, plan: Plan, name: str, chance: random.Random, *, group_id: str, places: Sequence[Place], to: str
    ) -> None:
        super().__init__(plan, name, plan.movers_end, chance)
        self._group_id, self._places, self._to = group_id, places, to

    async def live(self, life: str, producer: Producer, asking: Asking) -> None:
        positions = await committed_offsets(asking, self._group_id, self._places)
        for number in itertools.count():
            taken: dict[Position, bytes] = {}
            while not taken:
                if self.is_over:
                    return
                ends: dict[Place, int] = {}
                for place, part in (await fetch(asking, positions, isolation=COMMITTED)).items():
                    shown, ends[place] = records_of(part, positions[place])
                    taken |= {Position(place, offset): value for offset, value in shown}
                if not taken:
                    positions = {**positions, **ends}
                    await asyncio.sleep(0.1)
            transaction = self.plan.history.begin(f"{life}/{number}")
            transaction.read += taken
            if records := self.plan.moved_on(self.chance, transaction, taken, self._to):
                await producer.send(transaction, records)
            self.haunt()
            await producer.send_offsets(self._group_id, ends)
            if await self.end(producer, transaction):
                positions = {**positions, **ends}
            await self.pause()


async def committed_offsets(asking: Asking, group_id: str, places: Sequence[Place]) -> Mapping[Place, int]:
    """The stable ones; 0 where there is none."""
    topics: dict[str, list[int]] = {}
    for topic, partition in places:
        topics.setdefault(topic, []).append(partition)
    group = OffsetFetchRequestGroup(
        group_id=group_id,
        topics=[OffsetFetchRequestTopics(name=name, partition_indexes=parts) for name, parts in topics.items()],
    )

    def error_of(answer: OffsetFetchResponse) -> int:
        (found,) = answer.groups
        return found.error_code or next(
            (each.error_code for topic in found.topics for each in topic.partitions if each.error_code), 0
        )

    request = OffsetFetchRequest(groups=[group], require_stable=True)
    answer = await asking.at_coordinator(GROUP, group_id, request, OffsetFetchResponse, error_of)
    if code := error_of(answer):
        raise RefusedError("committed offsets", code)
    return {
        (topic.name, each.partition_index): max(0, each.committed_offset)
        for topic in answer.groups[0].topics
        for each in topic.partitions
    }
