"""Everything that transactional clients sent and were told."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.simulation.book import TopicPartition

UNKNOWN = -1


@dataclass(slots=True, eq=False)
class Sent:
    """One batch of a transaction. Its values name it."""

    transaction: Transaction
    place: TopicPartition
    values: tuple[bytes, ...]
    epoch: int
    sequence: int
    told_offset: int = UNKNOWN
    is_unanswered: bool = False
    """acks 0: it may be stored or not."""
    is_dropped: bool = False
    """Its client gave it up, and cannot know whether it is stored."""
    is_late: bool = False
    """Its request was carried out only after its client had begun the next transaction. The first protocol cannot tell
    such a batch from one of that transaction."""


@dataclass(slots=True, eq=False)
class Transaction:
    client: str
    transactional_id: str
    number: int
    producer_id: int
    epoch: int
    protocol: int
    batches: list[Sent] = field(default_factory=list[Sent])
    has_begun: bool = False
    """Its partitions were added, in the first protocol."""
    asked: str = ""
    """"commit" or "abort": what the client asked for last."""
    asked_to_commit: bool = False
    told: bool | None = None
    """The outcome that the client was told: committed, or aborted."""
    group_id: str = ""
    """The group that it commits an offset for."""
    value: int = UNKNOWN
    """The offset."""
    is_held: bool = False
    """The client was told that the offset is part of the transaction."""
    is_sent_again: bool = False
    """More than one request with the offset was sent."""
    plain_value: int = UNKNOWN
    """An offset that a plain OffsetCommit gave the group meanwhile."""
    is_confused: bool = False
    """A late request of an earlier transaction took effect in it. In the first protocol, Kafka does the same
    (KAFKA-17754), so nothing is promised."""

    @property
    def name(self) -> str:
        return f"{self.client}/{self.number}"


class Ledger:
    def __init__(self) -> None:
        self.transactions: list[Transaction] = []
        self.by_value: dict[bytes, Sent] = {}
        self.sent_as: dict[tuple[int, int, TopicPartition | None, int], Sent] = {}
        """By producer id, epoch, place and sequence."""
        self.current: dict[tuple[int, int], Transaction] = {}
        """The transaction that a client has begun last, by producer id and epoch."""
        self.loose_offsets: dict[str, set[int]] = {}
        """By group: offsets whose requests were lost. They may come at any time."""
        self._values = 0

    def begin(
        self, client: str, transactional_id: str, number: int, producer: tuple[int, int], protocol: int
    ) -> Transaction:
        transaction = Transaction(client, transactional_id, number, *producer, protocol)
        self.transactions.append(transaction)
        self.current[producer] = transaction
        return transaction

    def new_batch(self, transaction: Transaction, place: TopicPartition, records: int, sequence: int) -> Sent:
        number = len(transaction.batches)
        values = tuple(b"%s:%d.%d" % (transaction.name.encode(), number, each) for each in range(records))
        sent = Sent(transaction, place, values, transaction.epoch, sequence)
        transaction.batches.append(sent)
        self.by_value.update(dict.fromkeys(values, sent))
        self.sent_as[transaction.producer_id, transaction.epoch, place, sequence] = sent
        return sent

    def new_value(self) -> int:
        self._values += 1
        return self._values
