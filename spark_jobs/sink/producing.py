"""The work of a writing task: rows in, records produced through the agents, each acknowledged before it ends.

At least once: a producer is idempotent, so its own repeats leave no second record, but a task that Spark runs again
writes its rows again. There is no transaction over tasks, as there is none in Spark's Kafka sink.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from runtime.errors import SiltstoneError
from spark_jobs.sink.options import BOOTSTRAP, SinkOptionError, SinkOptions

ANSWER_S = 10
"""The time for an agent to say whether a topic exists."""
ASKED_MAX = 5
"""The most questions about a topic without a leader: an agent may have created it just now, for the first one."""


CHOOSE = -1
"""The client's number for a partition that it chooses."""


class WriteError(SiltstoneError):
    """Records were not written, or nobody knows: some of the task's rows may be in the topic."""


def check_topic(options: SinkOptions) -> None:
    """Check on the driver that the one topic of a write exists, before any task begins. Raises WriteError."""
    if options.topic is not None:
        RecordProducer(options).check(options.topic)


def produce_all(options: SinkOptions, batches: Iterable[Any]) -> int:
    """Write the rows of Arrow record batches; returns their number. Raises WriteError, SinkOptionError."""
    producer = RecordProducer(options)
    count = 0
    for batch in batches:
        for row in _rows(options, batch):
            producer.produce(*row)
        count += batch.num_rows
    producer.finish()
    return count


Headers = list[tuple[str, str | bytes | None]]
Row = tuple[str | None, bytes | None, bytes | None, Headers | None, int | None]
"""Topic, key, value, headers, partition; None: the client chooses by the key."""


def _rows(options: SinkOptions, batch: Any) -> Iterator[Row]:
    columns = dict(zip(options.columns, batch.columns, strict=True))
    nothing: list[Any] = [None] * batch.num_rows

    def of(name: str) -> list[Any]:
        # Text travels as its UTF-8 bytes.
        return columns[name].cast("binary").to_pylist() if name in columns else nothing

    topics = columns["topic"].to_pylist() if options.topic is None else [options.topic] * batch.num_rows
    headers = columns["headers"].to_pylist() if options.has_headers else nothing
    partitions = columns["partition"].to_pylist() if "partition" in columns else nothing
    for topic, key, value, pairs, partition in zip(topics, of("key"), of("value"), headers, partitions, strict=True):
        if pairs is not None and any(pair is None or pair["key"] is None for pair in pairs):
            raise WriteError("a header of a row has no key", remedy="leave such headers out of the column headers")
        named = None if pairs is None else [(pair["key"], pair["value"]) for pair in pairs]
        yield topic, key, value, named, partition


class RecordProducer:
    """A producer for one task."""

    def __init__(self, options: SinkOptions) -> None:
        """Raises SinkOptionError for properties that the client does not take."""
        self._bootstrap = options.client[BOOTSTRAP]
        self._failed: KafkaError | None = None
        self._reason = ""
        self._known: dict[str, int] = {}
        """The numbers of partitions of the topics."""
        reports: dict[str, Any] = {
            "on_delivery": self._delivered,
            "delivery.report.only.error": True,
            "error_cb": self._noticed,
            "log_level": 2,  # connections that fail are told in our errors, and not each on stderr
        }
        try:
            self._producer = Producer({**options.client, **reports})
        except KafkaException as error:
            raise SinkOptionError(
                f"the Kafka client refuses its properties: {_told(error.args[0])}",
                remedy="options kafka.* are those of librdkafka (confluent-kafka), as in docs/kafka-clients.md",
            ) from None

    def _delivered(self, error: KafkaError | None, _: object) -> None:
        if error is not None and self._failed is None:
            self._failed = error

    def _noticed(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:  # says less than the one before
            self._reason = error.str()

    def check(self, topic: str) -> None:
        """Check that the topic exists. Raises WriteError."""
        for asked in range(ASKED_MAX):
            try:
                there = self._producer.list_topics(topic, timeout=ANSWER_S).topics[topic]
            except KafkaException as error:
                self._producer.poll(0)  # tells the reason
                raise WriteError(
                    f"no agent at {self._bootstrap} answers: {self._reason or _told(error.args[0])}",
                    remedy="executors and the driver must reach kafka.bootstrap.servers and the agents' own addresses",
                ) from None
            found = there.error
            if found is None:
                self._known[topic] = len(there.partitions)
                return
            if found.code() != KafkaError.LEADER_NOT_AVAILABLE or asked == ASKED_MAX - 1:
                raise WriteError(
                    f"topic {topic!r} cannot be written: {_told(found)}",
                    remedy="`siltstone topics create` makes one, and `siltstone acls` shows the rights",
                )
            self._producer.poll(1)

    def produce(
        self,
        topic: str | None,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | None,
        partition: int | None,
    ) -> None:
        """Hand a record to the client. Raises WriteError when an earlier one failed."""
        if topic is None:
            raise WriteError("a row has no topic", remedy="fill the column topic, or write option('topic', ...)")
        if topic not in self._known:
            self.check(topic)
        if partition is not None:
            self._check_partition(topic, partition)
        to_partition = CHOOSE if partition is None else partition
        while True:
            try:
                self._producer.produce(topic, value, key, to_partition, headers=headers)
                break
            except BufferError:
                self._producer.poll(0.1)  # until there is room
            except KafkaException as error:
                raise _not_written(topic, error.args[0]) from None
            self._raise_failed()
        self._producer.poll(0)
        self._raise_failed()

    def _check_partition(self, topic: str, partition: int) -> None:
        if partition >= self._known[topic]:
            self.check(topic)  # partitions may have been added
        if not 0 <= partition < self._known[topic]:
            raise WriteError(
                f"a row names partition {partition} of topic {topic!r}, which has {self._known[topic]}, from 0 on",
                remedy="correct the column partition, or leave it out: the key then chooses",
            )

    def finish(self) -> None:
        """Wait until every record is acknowledged. Raises WriteError."""
        while self._producer.flush(1):
            self._raise_failed()
        self._raise_failed()

    def _raise_failed(self) -> None:
        if self._failed is not None:
            raise _not_written(", ".join(sorted(self._known)), self._failed)


_PASSING = "Spark runs the task again, which writes its rows again; kafka.delivery.timeout.ms waits longer"
_LASTING: Mapping[int, str] = {
    KafkaError.INVALID_RECORD: "a compacted topic takes no record without a key: fill the column key",
    KafkaError.MSG_SIZE_TOO_LARGE: "raise the topic's max.message.bytes, and kafka.message.max.bytes of the query",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "`siltstone acls` shows the rights of the user",
}
"""Remedies of errors that another try does not heal."""


def _not_written(topic: str, error: KafkaError) -> WriteError:
    return WriteError(
        f"a record of topic {topic!r} was not written: {_told(error)}",
        remedy=_LASTING.get(error.code(), _PASSING),
    )


def _told(error: KafkaError) -> str:
    return f"{error.name()}: {error.str()}"
