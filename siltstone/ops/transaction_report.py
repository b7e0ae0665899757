"""The answers of `siltstone transactions`: ids, offsets that their transactions hold back, and those that hang. Pure.

The coordinator is the agent that the agents themselves choose for an id, not the one that took the id last.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from agents.transactions.ownership import owner
from metadata.contract.leases import AgentInfo
from metadata.contract.operators import EnteredPartition, HeldView
from metadata.contract.topics import Watermarks
from metadata.transactions.contract import TransactionInfo, TransactionState
from runtime.text import age_text, plural

HANGING_MS = 20 * 60_000
"""Of Kafka's tool: longer than any time-out that agents allow by default (transaction.max.timeout.ms, 15 minutes)."""
LATE_MS = 30_000
"""Past its time-out by this much a transaction hangs: any agent would have aborted it by now, not its coordinator
alone."""
LIST_COLUMNS = ("transactional id", "producer", "epoch", "state", "coordinator", "ongoing for")
HELD_COLUMNS = ("partition", "first offset", "last stable", "high watermark", "held back", "by")
HANGING_COLUMNS = (
    *("transactional id", "producer", "epoch", "coordinator", "ongoing for", "time-out", "partitions", "groups"),
    "held back",
)


class Holder(NamedTuple):
    """The producer whose transaction is the oldest of a partition."""

    producer_id: int
    transactional_id: str | None
    """None: no transaction of the producer is ongoing, which is a fault."""

    @property
    def name(self) -> str:
        return f"producer {self.producer_id}" if self.transactional_id is None else self.transactional_id


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldPartition:
    """A partition that a transaction entered."""

    partition_id: int
    topic: str | None
    """None: the topic is gone."""
    partition: int
    first_offset: int | None
    """None: the transaction has no record here, so it holds nothing back."""
    marks: Watermarks | None
    holder: Holder | None = None
    """None: no transaction has records here."""

    @property
    def name(self) -> str:
        return f"partition id {self.partition_id}" if self.topic is None else f"{self.topic}-{self.partition}"

    @property
    def held_back(self) -> int:
        """The offsets that readers of committed records do not get yet, whichever transaction holds them."""
        return 0 if self.marks is None else self.marks.high_watermark - self.marks.last_stable_offset

    @property
    def holds(self) -> bool:
        """No other transaction of the partition began earlier."""
        if self.marks is None or self.first_offset is None:
            return False
        return self.first_offset <= self.marks.last_stable_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Strays:
    """The partitions that one producer entered, although no transaction of it is ongoing."""

    producer_id: int
    producer_epoch: int
    held: Sequence[HeldPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A transactional id at one time."""

    info: TransactionInfo
    coordinator: str
    """HOST:PORT; empty: no agent is there."""
    now_ms: int
    """By the store's clock."""

    @property
    def age_ms(self) -> int | None:
        """The age of the ongoing transaction; None without one."""
        return None if self.info.started_ms is None else self.now_ms - self.info.started_ms

    @property
    def group_ids(self) -> Sequence[str]:
        """The groups whose offsets the ongoing transaction commits; the row keeps those of one that has ended."""
        return () if self.info.started_ms is None else self.info.group_ids


def shown(info: TransactionInfo, agents: Sequence[AgentInfo], now_ms: int) -> Shown:
    found = owner(info.transactional_id, agents)
    coordinator = "" if found is None else f"{found.address.host}:{found.address.port}"
    return Shown(info=info, coordinator=coordinator, now_ms=now_ms)


def hangs(each: Shown, *, longer_than_ms: int) -> bool:
    """Its transaction has been ongoing for longer, or past its own time-out for LATE_MS: nobody ends it."""
    return each.age_ms is not None and each.age_ms > min(longer_than_ms, each.info.timeout_ms + LATE_MS)


class Held:
    """The offsets that transactions hold back on the partitions of a view."""

    def __init__(self, view: HeldView) -> None:
        self._places = {
            id_: (topic.name, number) for topic in view.topics for number, id_ in enumerate(topic.partition_ids)
        }
        self._marks = {each.partition_id: each for each in view.watermarks}
        names = {each.producer_id: each.transactional_id for each in view.infos if _is_ongoing(each)}
        self._holders: dict[int, Holder] = {}
        by_offset = [(row.first_offset, row) for row in view.entered if row.first_offset is not None]
        for _, row in sorted(by_offset, key=lambda each: each[0]):
            self._holders.setdefault(row.partition_id, Holder(row.producer_id, names.get(row.producer_id)))

    def partitions(self, entered: Mapping[int, int | None]) -> Sequence[HeldPartition]:
        """By topic and partition. `entered`: first offset by partition id."""
        found: list[HeldPartition] = []
        for id_, first_offset in entered.items():
            topic, number = self._places.get(id_, (None, -1))
            found.append(
                HeldPartition(
                    partition_id=id_,
                    topic=topic,
                    partition=number,
                    first_offset=first_offset,
                    marks=self._marks.get(id_),
                    holder=self._holders.get(id_),
                )
            )
        return sorted(found, key=lambda each: (each.topic or "", each.partition, each.partition_id))


def strays_of(view: HeldView, held: Held) -> Sequence[Strays]:
    """By producer id."""
    ongoing = {each.producer_id for each in view.infos if _is_ongoing(each)}
    by_producer: dict[tuple[int, int], list[EnteredPartition]] = defaultdict(list)
    for row in view.entered:
        if row.producer_id not in ongoing:
            by_producer[row.producer_id, row.epoch].append(row)
    return [
        Strays(
            producer_id=producer_id,
            producer_epoch=epoch,
            held=held.partitions({row.partition_id: row.first_offset for row in rows}),
        )
        for (producer_id, epoch), rows in sorted(by_producer.items())
    ]


def _is_ongoing(info: TransactionInfo) -> bool:
    return info.state is TransactionState.ONGOING


def by_age(found: Sequence[Shown]) -> Sequence[Shown]:
    """Ongoing transactions first, the oldest at the top; then by id."""
    return sorted(found, key=lambda each: (each.age_ms is None, -(each.age_ms or 0), each.info.transactional_id))


def list_cells(each: Shown) -> list[str]:
    return [
        each.info.transactional_id,
        str(each.info.producer_id),
        str(each.info.producer_epoch),
        each.info.state.kafka_name,
        each.coordinator or "none",
        "-" if each.age_ms is None else age_text(each.age_ms),
    ]


def hanging_cells(each: Shown, held: Sequence[HeldPartition]) -> list[str]:
    age_ms, timeout_ms = each.age_ms or 0, each.info.timeout_ms
    offsets = sum(one.held_back for one in held if one.holds)
    return [
        each.info.transactional_id,
        str(each.info.producer_id),
        str(each.info.producer_epoch),
        each.coordinator or "none",
        age_text(age_ms),
        age_text(timeout_ms) + (", over" if age_ms > timeout_ms else ""),
        f"{len(held):,}",
        f"{len(each.group_ids):,}",
        # Members of a group wait for its offsets, although no reader of a partition waits.
        f"{offsets:,}" if offsets or not each.group_ids else plural(len(each.group_ids), "group"),
    ]


def held_cells(each: HeldPartition) -> list[str]:
    return [
        each.name,
        "-" if each.first_offset is None else f"{each.first_offset:,}",
        "-" if each.marks is None else f"{each.marks.last_stable_offset:,}",
        "-" if each.marks is None else f"{each.marks.high_watermark:,}",
        f"{each.held_back:,}",
        "-" if each.holder is None or not each.held_back else "this one" if each.holds else each.holder.name,
    ]


def list_json(each: Shown) -> dict[str, Any]:
    return {
        "transactional_id": each.info.transactional_id,
        "producer_id": each.info.producer_id,
        "producer_epoch": each.info.producer_epoch,
        "state": each.info.state.kafka_name,
        "coordinator": each.coordinator or None,
        "started_ms": each.info.started_ms,
        "age_ms": each.age_ms,
        "timeout_ms": each.info.timeout_ms,
    }


def describe_json(each: Shown, held: Sequence[HeldPartition]) -> dict[str, Any]:
    return {
        **list_json(each),
        "updated_ms": each.info.updated_ms,
        "coordinator_epoch": each.info.coordinator_epoch,
        "taken_last_by": each.info.owner_id,
        "client_version": each.info.client_version,
        "groups": list(each.group_ids),
        "partitions": [held_json(one) for one in held],
    }


def held_json(each: HeldPartition) -> dict[str, Any]:
    return {
        "topic": each.topic,
        "partition": each.partition,
        "partition_id": each.partition_id,
        "first_offset": each.first_offset,
        "last_stable_offset": None if each.marks is None else each.marks.last_stable_offset,
        "high_watermark": None if each.marks is None else each.marks.high_watermark,
        "held_back": each.held_back,
        "holds": each.holds,
        "held_by": None if each.holder is None or not each.held_back else each.holder.transactional_id,
    }


def strays_json(each: Strays) -> dict[str, Any]:
    return {
        "producer_id": each.producer_id,
        "producer_epoch": each.producer_epoch,
        "partitions": [held_json(one) for one in each.held],
    }
