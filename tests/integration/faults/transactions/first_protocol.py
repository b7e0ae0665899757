"""Clients of the first protocol: librdkafka, which adds partitions and groups to its transactions by requests of their
own. A source of records, and a mover that is a member of a group."""

from __future__ import annotations

import itertools
import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

from tests.integration.faults.transactions.asking import PATIENCE_S
from tests.integration.faults.transactions.history import Place, Position, Transaction
from tests.integration.faults.transactions.plan import Ending, Plan

CALL_S = 5
HUNG_S = 15
TAKEN_MAX = 20
COMMON: Mapping[str, Any] = {
    "log_level": 0,
    "socket.timeout.ms": 4_000,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 300,
    "topic.metadata.refresh.interval.ms": 1_000,
    "metadata.max.age.ms": 2_000,
    "topic.metadata.refresh.fast.interval.ms": 100,
    "retry.backoff.ms": 50,
}


class AbandonedError(Exception):
    """The client goes away in the middle."""


class HungError(AbandonedError):
    pass


class PurgedError(AbandonedError):
    """An abort dropped records that no agent had acknowledged, though one may have stored them. librdkafka gives their
    sequence numbers to its next records (`rd_kafka_toppar_purge_queues` advances `epoch_base_msgid`), so a broker,
    also Kafka's, answers those as duplicates of the aborted ones and stores none. A new epoch is the cure."""


def in_time(call: Callable[[], object]) -> None:
    """Make a call of librdkafka that may never return: it waits for a coordinator that has gone, also beyond the time
    that it is given (librdkafka's issues 5456 and 5511). Then its client is killed, as an operator would do: it is left
    in its thread. Raises HungError, and what the call raises."""
    failed: list[Exception] = []

    def run() -> None:
        try:
            call()
        except Exception as error:  # raised again below
            failed.append(error)

    thread = threading.Thread(target=run, name="may hang", daemon=True)
    thread.start()
    thread.join(HUNG_S)
    if thread.is_alive():
        raise HungError
    for error in failed:
        raise error


def until_done(call: Callable[[float], object], patience_s: float = PATIENCE_S) -> None:
    """Repeat a call of librdkafka that ran out of time. Raises KafkaException."""
    deadline_s = time.monotonic() + patience_s
    while True:
        try:
            call(CALL_S)
            return
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline_s:
                raise


class Seat(ABC):
    """One transactional id, in a thread of its own. A life of it ends when librdkafka gives up, or its client."""

    def __init__(self, plan: Plan, name: str, ending: threading.Event, chance: random.Random) -> None:
        self.plan, self.name, self.chance = plan, name, chance
        self._ending = ending
        self._lives = 0
        self.doing = ""
        """For the message about one that does not go on."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        self._thread.join(PATIENCE_S)
        if self._thread.is_alive():
            self.plan.history.failed.append(f"{self.name} does not end")

    @property
    def is_over(self) -> bool:
        return self._ending.is_set()

    @abstractmethod
    def live(self, life: str, producer: Producer) -> None:
        """Raises KafkaException, AbandonedError."""

    def send(self, producer: Producer, transaction: Transaction, records: Mapping[Place, Sequence[bytes]]) -> None:
        """Send, and perhaps wait for every answer. Raises KafkaException."""
        self.doing = f"sends in {transaction.name}"

        def delivered(error: Any, message: Message) -> None:
            value, offset = message.value(), message.offset()
            if error is None and value is not None and offset is not None and offset >= 0:
                transaction.offsets[value] = offset

        for (topic, partition), values in records.items():
            for value in values:
                producer.produce(topic, value, partition=partition, on_delivery=delivered)
        producer.flush(self.chance.choice((0, 0, CALL_S)))

    def end(self, producer: Producer, transaction: Transaction) -> bool:
        """As chance has it. Returns whether it is committed. Raises KafkaException, after which it may be, and
        AbandonedError."""
        self.doing = f"ends {transaction.name}"
        ending = self.plan.ending_of(self.chance)
        if ending is Ending.ABANDON:
            raise AbandonedError
        if ending is Ending.ABORT:
            self._abort(producer, transaction)
            self.plan.history.count("first: aborted")
            return False
        transaction.asked_s = time.monotonic()
        until_done(producer.commit_transaction)
        transaction.is_committed = True
        self.plan.history.count("first: committed")
        return True

    def recover(self, producer: Producer, transaction: Transaction, error: KafkaException) -> None:
        """Abort after an error that says so. Raises KafkaException, PurgedError: the producer is of no use any more."""
        why = error.args[0]
        self.doing = f"recovers from {why}"
        self.plan.history.count(f"first: {why.name()}, {'fatal' if why.fatal() else 'not fatal'}")
        if not why.txn_requires_abort():
            raise error
        self._abort(producer, transaction)
        self.plan.history.count("first: aborted after an error")

    # ---- inside

    def _abort(self, producer: Producer, transaction: Transaction) -> None:
        until_done(producer.abort_transaction)
        if len(transaction.offsets) < len(transaction.sent):
            raise PurgedError

    def _run(self) -> None:
        try:
            while not self.is_over:
                self._life()
        except Exception as error:  # every one is a finding
            self.plan.history.failed.append(f"{self.name}: {error!r}")
            raise

    def _life(self) -> None:
        self._lives += 1
        producer = Producer(
            {
                **COMMON,
                "bootstrap.servers": self.plan.bootstrap,
                "transactional.id": self.name,
                "transaction.timeout.ms": self.plan.timeout_ms,
                "linger.ms": 5,
                # A connection that goes has librdkafka look again for coordinators that it waits for: see `in_time`.
                "connections.max.idle.ms": 3_000,
            }
        )
        try:
            self.doing = "inits"
            until_done(producer.init_transactions)
            self.live(f"{self.name}.{self._lives}", producer)
        except KafkaException as error:
            self.plan.history.count(f"first: a life ends, {error.args[0].name()}, it {self.doing.split()[0]}")
        except HungError:
            self.plan.history.count(f"first: librdkafka hangs, it {self.doing.split()[0]}")
        except PurgedError:
            self.plan.history.count("first: aborted, with records that were not acknowledged")
        except AbandonedError:
            self.plan.history.count("first: abandoned")


class Source(Seat):
    """Writes records to several partitions of both topics."""

    def live(self, life: str, producer: Producer) -> None:
        for number in itertools.count():
            if self.is_over:
                return
            producer.begin_transaction()
            transaction = self.plan.history.begin(f"{life}/{number}")
            try:
                for _ in range(self.chance.randint(1, 2)):
                    self.send(producer, transaction, self.plan.new_records(self.chance, transaction))
                self.end(producer, transaction)
            except KafkaException as error:
                self.recover(producer, transaction, error)
            time.sleep(self.plan.pause_s(self.chance))


class Mover(Seat):
    """Moves records on that its group assigns to it."""

    def __init__(self, plan: Plan, name: str, chance: random.Random, *, group_id: str, topic: str, to: str) -> None:
        super().__init__(plan, name, plan.movers_end, chance)
        self._group_id, self._topic, self._to = group_id, topic, to
        self._assignments = 0

    def live(self, life: str, producer: Producer) -> None:
        consumer = Consumer(
            {
                **COMMON,
                "bootstrap.servers": self.plan.bootstrap,
                "group.id": self._group_id,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "session.timeout.ms": 6_000,
                "heartbeat.interval.ms": 500,
                "fetch.wait.max.ms": 200,
            }
        )
        consumer.subscribe([self._topic], on_assign=self._moved, on_revoke=self._moved, on_lost=self._moved)
        try:
            for number in itertools.count():
                taken = self._take(consumer)
                if not taken:
                    return
                producer.begin_transaction()
                transaction = self.plan.history.begin(f"{life}/{number}")
                try:
                    if not self._move(producer, consumer, transaction, taken):
                        self._rewind(consumer, taken)
                except KafkaException as error:
                    self.recover(producer, transaction, error)
                    if transaction.asked_s < time.monotonic():
                        return  # it may be committed: the next life asks the group where to go on
                    self._rewind(consumer, taken)
                time.sleep(self.plan.pause_s(self.chance))
        finally:
            in_time(consumer.close)

    def _take(self, consumer: Consumer) -> Mapping[Position, bytes]:
        """Some records, all from one assignment. None: it is over."""
        taken: dict[Position, bytes] = {}
        assignments = self._assignments
        self.doing = (
            f"reads from {[(each.partition, each.offset) for each in consumer.position(consumer.assignment())]}"
        )
        while len(taken) < TAKEN_MAX:
            if self.is_over and not taken:
                return {}
            message = consumer.poll(0.02 if taken else 0.3)
            if assignments != self._assignments:
                taken, assignments = {}, self._assignments  # those that are still its own are fetched again
            if message is None and taken:
                break
            if message is None or message.error():
                continue
            topic, partition, offset, value = message.topic(), message.partition(), message.offset(), message.value()
            assert topic is not None and partition is not None and offset is not None and value is not None
            taken[Position((topic, partition), offset)] = value
        return taken

    def _move(
        self, producer: Producer, consumer: Consumer, transaction: Transaction, taken: Mapping[Position, bytes]
    ) -> bool:
        transaction.read += taken
        self.send(producer, transaction, self.plan.moved_on(self.chance, transaction, taken, self._to))
        ends = {place: offset + 1 for place, offset in sorted(taken)}
        offsets = [TopicPartition(*place, offset) for place, offset in ends.items()]
        member = consumer.consumer_group_metadata()
        self.doing = f"sends offsets in {transaction.name}"
        in_time(lambda: until_done(lambda s: producer.send_offsets_to_transaction(offsets, member, s), HUNG_S / 2))
        return self.end(producer, transaction)

    def _rewind(self, consumer: Consumer, taken: Mapping[Position, bytes]) -> None:
        """Raises KafkaException."""
        firsts = dict(sorted(taken, reverse=True))
        for place, offset in firsts.items():
            consumer.seek(TopicPartition(*place, offset))

    def _moved(self, *_: object) -> None:
        self._assignments += 1
