"""A consumer group for display: its lag, its members' partitions, and the effect of a reset of offsets. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runtime.errors import BadInputError
from runtime.text import plural
from siltstone.kafka.groups.admin import Committed, GroupDescription, Member
from siltstone.kafka.records import TopicPartition

BAR_CELLS = 16
READ, UNREAD = "█", "░"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEnds:
    start: int
    end: int
    stable: int
    """The last stable offset: readers of committed records get nothing at or above it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLag:
    """One partition that a group reads or has read."""

    topic: str
    partition: int
    committed: int | None
    """None: no committed offset."""
    log: LogEnds | None
    """None: the partition is gone."""
    member: Member | None
    """The member that is assigned the partition now."""

    @property
    def lag(self) -> int | None:
        """Offsets from the committed one to the end, as Kafka's tools count them; None if either is not known."""
        return None if self.committed is None or self.log is None else max(0, self.log.end - self.committed)

    @property
    def fraction(self) -> float | None:
        """The share of the log's offsets that is read, 0 to 1."""
        if self.committed is None or self.log is None:
            return None
        held = self.log.end - self.log.start
        return 1.0 if held <= 0 else min(1.0, max(0.0, (self.committed - self.log.start) / held))

    @property
    def waits(self) -> bool:
        """Whether the group has read all that readers of committed records get before a transaction ends."""
        return self.log is not None and self.committed == self.log.stable < self.log.end

    @property
    def note(self) -> str:
        """A remark beside the numbers; "" = none."""
        if self.log is None:
            return "the partition is gone"
        if self.committed is None:
            return ""
        if self.committed < self.log.start:
            return f"committed below the log start {self.log.start}: the records between are gone"
        if self.waits:
            held = self.log.end - self.committed
            return f"waits for the end of an open transaction, which holds back {plural(held, 'offset')}"
        return (
            f"committed above the log's end by {self.committed - self.log.end}" if self.committed > self.log.end else ""
        )


def lags(
    group: GroupDescription,
    committed: Mapping[TopicPartition, Committed],
    logs: Mapping[TopicPartition, LogEnds],
    *,
    partitions: Mapping[str, int] | None = None,
) -> Sequence[PartitionLag]:
    """Rows for committed and assigned partitions, by topic and partition.

    `partitions` gives the number of partitions of each topic. All partitions of a topic that the group reads are shown,
    because one without a committed offset is unread, not up to date.
    """
    readers = assigned(group)
    read_topics = {topic for topic, _ in (*committed, *readers)}
    counts = partitions or {}
    unread = {(topic, partition) for topic in read_topics for partition in range(counts.get(topic, 0))}
    return [
        PartitionLag(
            topic=topic,
            partition=partition,
            committed=committed[topic, partition].offset if (topic, partition) in committed else None,
            log=logs.get((topic, partition)),
            member=readers.get((topic, partition)),
        )
        for topic, partition in sorted({*committed, *readers, *unread})
    ]


def assigned(group: GroupDescription) -> Mapping[TopicPartition, Member]:
    return {
        (topic, partition): member
        for member in group.members
        for topic, partitions in (member.assignment or {}).items()
        for partition in partitions
    }


def total_lag(rows: Sequence[PartitionLag]) -> int:
    """Summed over the partitions with a known lag."""
    return sum(each.lag or 0 for each in rows)


def total_lag_text(rows: Sequence[PartitionLag]) -> str:
    unread = sum(each.committed is None and each.log is not None for each in rows)
    gone = sum(each.log is None for each in rows)
    left_out = [f"{unread} without an offset"] if unread else []
    left_out += [f"{gone} gone"] if gone else []
    return f"{total_lag(rows):,}" + (f" (not counted: {', '.join(left_out)})" if left_out else "")


LAG_COLUMNS: Sequence[str] = ("topic", "partition", "committed", "log end", "lag", "member", "client")


def lag_cells(row: PartitionLag) -> list[str]:
    member = row.member
    return [
        row.topic,
        str(row.partition),
        _number(row.committed),
        _number(None if row.log is None else row.log.end),
        _number(row.lag),
        "-" if member is None else member.instance_id or short_member_id(member.member_id),
        "-" if member is None else f"{member.client_id} {member.host}".strip(),
    ]


def bar(fraction: float | None) -> str:
    """The share that is read; full only when everything is."""
    if fraction is None:
        return ""
    # Never full before the end: one unread record of a million must show.
    cells = BAR_CELLS if fraction >= 1 else min(BAR_CELLS - 1, int(fraction * BAR_CELLS))
    return READ * cells + UNREAD * (BAR_CELLS - cells)


def short_member_id(member_id: str) -> str:
    """A coordinator makes a member id from the client's id and a UUID; a table needs only the beginning of the UUID."""
    head, dash, tail = member_id[:-36], member_id[-37:-36], member_id[-36:]
    if dash == "-" and head and tail.count("-") == 4:
        return f"{head}{tail[:8]}…"
    return member_id


def describe_json(group: GroupDescription, rows: Sequence[PartitionLag]) -> dict[str, Any]:
    return {
        "group": group.group_id,
        "state": group.state,
        "protocol_type": group.protocol_type,
        "protocol": group.protocol,
        "coordinator": group.coordinator,
        "total_lag": total_lag(rows),
        "members": [
            {
                "member_id": each.member_id,
                "instance_id": each.instance_id,
                "client_id": each.client_id,
                "host": each.host,
                "assignment": None
                if each.assignment is None
                else {topic: list(partitions) for topic, partitions in sorted(each.assignment.items())},
            }
            for each in group.members
        ],
        "partitions": [
            {
                "topic": each.topic,
                "partition": each.partition,
                "committed": each.committed,
                "log_start": None if each.log is None else each.log.start,
                "log_end": None if each.log is None else each.log.end,
                "last_stable_offset": None if each.log is None else each.log.stable,
                "lag": each.lag,
                "member_id": None if each.member is None else each.member.member_id,
            }
            for each in rows
        ],
    }


# Resetting


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset:
    """One partition's committed offset before and after."""

    topic: str
    partition: int
    before: int | None
    after: int
    log: LogEnds
    moved: bool = False
    """The requested offset lies outside the log, so `after` is the nearer end of the log."""

    @property
    def lag(self) -> int:
        return self.log.end - self.after


def resets(
    wanted: Mapping[TopicPartition, int],
    committed: Mapping[TopicPartition, Committed],
    logs: Mapping[TopicPartition, LogEnds],
) -> Sequence[Reset]:
    """The `wanted` offsets, each moved into its log if it lies outside (ConsumerGroupCommand.checkOffsetsRange)."""
    found: list[Reset] = []
    for topic, partition in sorted(wanted):
        log = logs[topic, partition]
        asked = wanted[topic, partition]
        after = min(max(asked, log.start), log.end)
        before = committed.get((topic, partition))
        found.append(
            Reset(
                topic=topic,
                partition=partition,
                before=None if before is None else before.offset,
                after=after,
                log=log,
                moved=after != asked,
            )
        )
    return found


class NothingCommittedError(BadInputError):
    """A shift needs an offset to start from."""


def shifted(
    partitions: Collection[TopicPartition], committed: Mapping[TopicPartition, Committed], by: int
) -> Mapping[TopicPartition, int]:
    """Raises NothingCommittedError."""
    for topic, partition in sorted(partitions):
        if (topic, partition) not in committed:
            raise NothingCommittedError(
                f"{topic} partition {partition} has no committed offset to shift",
                remedy=f"name partitions that have one: --topic {topic}:P,...",
            )
    return {each: committed[each].offset + by for each in partitions}


RESET_COLUMNS: Sequence[str] = ("topic", "partition", "before", "after", "change", "lag after", "log")


def reset_cells(row: Reset) -> list[str]:
    change = "-" if row.before is None else f"{row.after - row.before:+,}"
    log = f"{row.log.start} to {row.log.end}" + (" (held within)" if row.moved else "")
    return [row.topic, str(row.partition), _number(row.before), str(row.after), change, str(row.lag), log]


def reset_json(row: Reset) -> dict[str, Any]:
    return {
        "topic": row.topic,
        "partition": row.partition,
        "before": row.before,
        "after": row.after,
        "lag_after": row.lag,
        "log_start": row.log.start,
        "log_end": row.log.end,
        "held_within_log": row.moved,
    }


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)
