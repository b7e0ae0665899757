"""Transactional producers of both protocols, which write to several partitions through agents that they hop between.

A producer has one transaction at a time. It waits for the answers of all its batches before it commits; when it aborts,
it may not wait. After an error that ends the transaction it aborts, and goes on with a new epoch; when it hears that
another producer has its id, it begins anew. The last thing it does is InitProducerId, so nothing of it stays open.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from metadata.transactions.contract import PRODUCER_EPOCH_MAX
from tests.simulation.access.principals import SUPER_USER
from tests.simulation.book import TopicPartition
from tests.simulation.clients import Client, Line, LineLostError
from tests.simulation.faults import Fault
from tests.simulation.transactions.groups import GroupOffsets
from tests.simulation.transactions.ledger import Sent, Transaction
from tests.simulation.transactions.merges import COMPACTED
from tests.simulation.transactions.requests import RETRIABLE, TRANSACTION, Asking
from wire.batch import ProducerStamp
from wire.error_codes import ErrorCode
from wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from wire.records import NewRecord, build_batch

if TYPE_CHECKING:
    from tests.simulation.transactions.transactions import Transactions
    from tests.simulation.world import World

FIRST_VERSIONS = {0: (8, 11), 8: (7,), 9: (7,), 10: (1, 3), 11: (3,), 14: (3,), 22: (4,), 24: (0, 3), 25: (0, 3)} | {
    26: (1, 3),
    28: (3,),
}
SECOND_VERSIONS = {**FIRST_VERSIONS, 0: (12,), 22: (4, 5), 26: (5,), 28: (5,)}
TRIMMER_VERSIONS = {21: (1, 2)}
ENDS_TRANSACTION = {
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.TRANSACTION_ABORTABLE,
}
ABORTED_SHARE = 0.25
DROPPED_SHARE = 0.5
"""Of the aborted transactions: their client does not wait for the answers of its batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """What a producer is like."""

    transactional_id: str
    protocol: int
    places: list[TopicPartition]
    timeout_ms: int
    is_alone: bool
    """Nobody else ends its transactions: no other producer of its id, and no timeout."""


class TransactionEndedError(Exception):
    """The transaction cannot go on."""


class TransactionalProducer(Asking):
    def __init__(self, world: World, room: Transactions, name: str, ways: Ways, transactions: int) -> None:
        self.versions_known = SECOND_VERSIONS if ways.protocol == 2 else FIRST_VERSIONS
        super().__init__(world, name, rng=room.rng)
        self.ways = ways
        self.room = room
        self.ledger = room.ledger
        self.own: list[Transaction] = []
        self._left = transactions
        self._producer = (-1, -1)
        self._sequences: dict[TopicPartition, int] = {}
        self._is_unsure = False
        """It gave up batches of this epoch, or sent some without an answer: the next sequence may be refused."""
        self._may_be_fenced = False
        """The answer to an InitProducerId was lost. It may be carried out late, and give the id another epoch."""
        self._data: Line | None = None
        self.offsets = GroupOffsets(self)

    @property
    def producer(self) -> tuple[int, int]:
        return self._producer

    async def run(self) -> None:
        await self._init()
        while self._left:
            self._left -= 1
            await self._transaction()
            await self.pause(0, self.rng.choice((20, 250)))
        await self._init()
        self.hang_up_all()
        if self._data is not None:
            self._data.close()

    # ---- one transaction

    async def _transaction(self) -> None:
        rng = self.rng
        transaction = self.ledger.begin(
            self.name, self.ways.transactional_id, len(self.own), self._producer, self.ways.protocol
        )
        self.own.append(transaction)
        commits = rng.random() >= ABORTED_SHARE
        drops, has_failed = not commits and rng.random() < DROPPED_SHARE, False
        places = [place for place in self.ways.places if rng.random() < 0.65] or [self.ways.places[0]]
        began_ms = self.world.loop.now_ms
        self.facts("begins", txn=transaction.name, producer=self._producer)
        try:
            if self.ways.protocol == 1:
                await self._add(places)
            transaction.has_begun = True
            for last in (False, True) if rng.random() < 0.4 else (True,):
                some = places if last else places[:1]
                await self._send(transaction, some, drops=drops and last)
                await self.pause(0, 60)
            if rng.random() < 0.45:
                await self.offsets.commit(transaction)
            if self.ways.timeout_ms < 5_000 and rng.random() < 0.6:
                # Often it comes just before or behind those who look for overdue transactions.
                left_ms = began_ms + self.ways.timeout_ms - self.world.loop.now_ms
                is_close = rng.random() < 0.6 and left_ms > 0
                await self.pause(*((left_ms, left_ms + 350) if is_close else (0, 2 * self.ways.timeout_ms)))
        except TransactionEndedError as error:
            self.facts("cannot go on", txn=transaction.name, why=str(error))
            commits, has_failed = False, True
        if self.ways.protocol == 2 and not any(sent.told_offset >= 0 for sent in transaction.batches):
            commits = False  # there may be nothing to end
        goes_on = await self._end(transaction, commit=commits)
        # KIP-360. Older clients go on behind the batches that they gave up.
        is_new = has_failed or (self._is_unsure and rng.random() < 0.3)
        if goes_on and is_new and self.ways.protocol == 1:
            await self._init(goes_on=True)

    async def _end(self, transaction: Transaction, *, commit: bool) -> bool:
        """Whether the producer goes on as it is."""
        transaction.asked = "commit" if commit else "abort"
        transaction.asked_to_commit = commit
        producer_id, epoch = self._producer
        self.facts("ends", txn=transaction.name, commit=commit)
        answer = await self.ask(
            TRANSACTION,
            self.ways.transactional_id,
            EndTxnRequest(
                transactional_id=self.ways.transactional_id,
                producer_id=producer_id,
                producer_epoch=epoch,
                committed=commit,
            ),
            EndTxnResponse,
            lambda it: it.error_code,
            copies=self.ways.protocol == 2,
            twice=self.ways.protocol == 2 and epoch == PRODUCER_EPOCH_MAX,
        )
        error = ErrorCode(answer.error_code)
        self.facts("is told the end", txn=transaction.name, error=error.name, epoch=answer.producer_epoch)
        if error is not ErrorCode.NONE:
            if error not in ENDS_TRANSACTION:
                self.world.violation(f"{self.name} ended {transaction.name} and got {error.name}")
            if transaction.has_begun:
                self._blame(transaction, error, "ended it")
            self.offsets.unsure(transaction)
            await self._init()
            return False
        transaction.told = commit
        await self.offsets.ended(transaction)
        if self.ways.protocol == 2:
            self._become(answer.producer_id, answer.producer_epoch)
        return True

    async def _init(self, *, goes_on: bool = False) -> None:
        producer_id, epoch = self._producer if goes_on else (-1, -1)
        lost = self.lost
        while True:
            answer = await self.ask(
                TRANSACTION,
                self.ways.transactional_id,
                InitProducerIdRequest(
                    transactional_id=self.ways.transactional_id,
                    transaction_timeout_ms=self.ways.timeout_ms,
                    producer_id=producer_id,
                    producer_epoch=epoch,
                ),
                InitProducerIdResponse,
                lambda it: it.error_code,
            )
            error = ErrorCode(answer.error_code)
            self.facts("is told its producer", error=error.name, id=answer.producer_id, epoch=answer.producer_epoch)
            if error is ErrorCode.NONE:
                self._become(answer.producer_id, answer.producer_epoch)
                self._may_be_fenced = lost != self.lost
                return
            if error not in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH):
                self.world.violation(f"{self.name} asked for its producer and got {error.name}")
            if producer_id < 0:
                self.world.violation(f"{self.name} begins anew and is told {error.name}")
                return
            producer_id, epoch = -1, -1  # another one has the id: begin anew

    def _become(self, producer_id: int, epoch: int) -> None:
        if (producer_id, epoch) != self._producer:
            self._producer = (producer_id, epoch)
            self._sequences.clear()
            self._is_unsure = False

    async def _add(self, places: list[TopicPartition]) -> None:
        """Raises TransactionEndedError."""
        topics: dict[str, list[int]] = {}
        for topic, partition in places:
            topics.setdefault(topic, []).append(partition)
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.ways.transactional_id,
            v3_and_below_producer_id=self._producer[0],
            v3_and_below_producer_epoch=self._producer[1],
            v3_and_below_topics=[
                AddPartitionsToTxnTopic(name=name, partitions=parts) for name, parts in topics.items()
            ],
        )
        answer = await self.ask(
            TRANSACTION, self.ways.transactional_id, request, AddPartitionsToTxnResponse, _error_of_added
        )
        if error := _error_of_added(answer):
            self.judge_error(self.own[-1], ErrorCode(error), "added partitions", places)

    # ---- records

    async def _send(self, transaction: Transaction, places: list[TopicPartition], *, drops: bool) -> None:
        """One batch for each place. Raises TransactionEndedError."""
        waiting = [self._new_batch(transaction, place) for place in places]
        data = {sent: self._bytes_of(sent) for sent in waiting}
        if self.rng.random() < 0.06:
            for sent in waiting:
                sent.is_unanswered = True
            self._is_unsure = True
            (await self._line()).begin_unanswered(self._request(data, acks=0))
            await self.pause(0, 150)
            return
        if drops:
            self._is_unsure = True
            for sent in waiting:
                sent.is_dropped = True
            (await self._line()).begin(self._request(data))
            await self.pause(0, self.rng.choice((40, 250)))
            return
        if self.world.faults.strikes(Fault.DUPLICATED):
            self.world.start_copy(self.process, self._send_again(self._request(data)))
        while waiting:
            line = await self._line()
            try:
                answer = await line.call(self._request({sent: data[sent] for sent in waiting}), ProduceResponse)
            except LineLostError:
                await self.pause(5, 100)
                continue
            self._hear(waiting, answer)
            if waiting:
                await self.pause(5, 100)
                if self.rng.random() < 0.5:
                    line.close()

    def _hear(self, waiting: list[Sent], answer: ProduceResponse) -> None:
        """Raises TransactionEndedError."""
        parts = {(topic.name, part.index): part for topic in answer.responses for part in topic.partition_responses}
        failed: tuple[Sent, ErrorCode] | None = None
        for sent in list(waiting):
            part = parts[sent.place]
            error = ErrorCode(part.error_code)
            self.facts("is told", txn=sent.transaction.name, place=sent.place, error=error.name, at=part.base_offset)
            if error is ErrorCode.NONE:
                waiting.remove(sent)
                sent.told_offset = part.base_offset
            elif error not in RETRIABLE:
                failed = failed or (sent, error)
        if failed is not None:
            sent, error = failed
            self._is_unsure = True
            self.judge_error(sent.transaction, error, "sent records", [sent.place])

    def judge_error(self, transaction: Transaction, error: ErrorCode, what: str, places: list[TopicPartition]) -> None:
        """Raises TransactionEndedError."""
        may_vanish = any(self.world.may_vanish(place) for place in places)
        vanished = error in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OPERATION_NOT_ATTEMPTED) and may_vanish
        if error not in ENDS_TRANSACTION and not vanished:
            self.world.violation(f"{self.name} {what} in {transaction.name} and got {error.name}")
        if not may_vanish:
            self._blame(transaction, error, what)
        raise TransactionEndedError(error.name)

    def _blame(self, transaction: Transaction, error: ErrorCode, what: str) -> None:
        """Nobody but its client ends a transaction of a producer that is alone."""
        is_sure = not (self._is_unsure or self._may_be_fenced)
        if self.ways.is_alone and is_sure and not transaction.is_confused and not self.has_confused():
            self.world.violation(f"{self.name} {what} in {transaction.name} and got {error.name}, and is alone")

    def has_confused(self) -> bool:
        """A late request may have changed what its epoch stands for."""
        return self.ways.protocol == 1 and any(each.is_confused for each in self.own[-2:])

    def _new_batch(self, transaction: Transaction, place: TopicPartition) -> Sent:
        records = self.rng.randint(1, 3)
        sequence = self._sequences.get(place, 0)
        self._sequences[place] = sequence + records
        return self.ledger.new_batch(transaction, place, records, sequence)

    def _bytes_of(self, sent: Sent) -> bytes:
        now_ms = self.world.server_clock.wall_ms()
        # In the compacted topic each record has a key of its own, so that nothing hides it.
        is_compacted = sent.place[0] == COMPACTED
        records = [
            NewRecord(now_ms + at, value if is_compacted else b"k", value) for at, value in enumerate(sent.values)
        ]
        stamp = ProducerStamp(sent.transaction.producer_id, sent.epoch, sent.sequence)
        return build_batch(records, producer=stamp, transactional=True)

    def _request(self, data: dict[Sent, bytes], acks: int = -1) -> ProduceRequest:
        topics: dict[str, list[PartitionProduceData]] = {}
        for sent, batch in data.items():
            topic, partition = sent.place
            topics.setdefault(topic, []).append(PartitionProduceData(index=partition, records=batch))
        return ProduceRequest(
            transactional_id=self.ways.transactional_id,
            acks=acks,
            timeout_ms=1_500,
            topic_data=[TopicProduceData(name=name, partition_data=parts) for name, parts in topics.items()],
        )

    async def _line(self) -> Line:
        """To an agent of the moment."""
        if self._data is None or self._data.is_lost or self.rng.random() < 0.25:
            if self._data is not None:
                self._data.close()
            self._data = await self.dial()
        return self._data

    async def _send_again(self, request: ProduceRequest) -> None:
        """The same request on another line, at about the same time or when its transaction is over."""
        await self.pause(0, self.rng.choice((40, 700)))
        line = await self.dial()
        try:
            await line.call(request, ProduceResponse)
        except LineLostError:
            return
        line.close()


def _error_of_added(answer: AddPartitionsToTxnResponse) -> int:
    errors = [
        each.partition_error_code
        for topic in answer.results_by_topic_v3_and_below
        for each in topic.results_by_partition
    ]
    attempted = [error for error in errors if error not in (0, int(ErrorCode.OPERATION_NOT_ATTEMPTED))]
    return next(iter(attempted), max(errors, default=0))


class Trimmer(Client):
    """Deletes records of one partition from the start."""

    principal = SUPER_USER
    versions_known = TRIMMER_VERSIONS

    def __init__(self, world: World, room: Transactions, place: TopicPartition) -> None:
        super().__init__(world, "trimmer", rng=room.rng)
        self._place = place

    async def run(self) -> None:
        topic, partition = self._place
        while self.world.healed_ms is None:
            await self.pause(100, 900)
            line = await self.dial()
            offset = self.rng.choice((-1, self.rng.randint(0, 12)))
            request = DeleteRecordsRequest(
                topics=[
                    DeleteRecordsTopic(
                        name=topic, partitions=[DeleteRecordsPartition(partition_index=partition, offset=offset)]
                    )
                ],
                timeout_ms=1_000,
            )
            try:
                answer = await line.call(request, DeleteRecordsResponse)
                self.facts("trims", offset=offset, error=answer.topics[0].partitions[0].error_code)
            except LineLostError:
                continue
            line.close()
