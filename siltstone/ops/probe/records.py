"""The records of the probe, and what became of them. Pure.

A record says who sent it, and as which one, so that a probe knows its own among those of other probes, and a topic that
somebody else writes to is noticed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum

from runtime.errors import SiltstoneError
from siltstone.kafka.record_format import OutputRecord
from wire.records import NewRecord

SEE_LOST = "docs/operations/runbook.md, SiltstoneProbeLost"
_MARK = "siltstone-probe"


class Outcome(StrEnum):
    """The end of a round trip: a record goes to each partition and comes back."""

    OK = "ok"
    FAILED = "failed"
    """An agent refused, or none was reached."""
    LATE = "late"
    """Not over within the time-out."""
    LOST = "lost"
    """A record was acknowledged, and is not there, is another one or is out of order."""
    REPLACED = "replaced"
    """Somebody deleted the topic meanwhile, and it may have been made again. So nothing is known of the record."""


class LostRecordError(SiltstoneError):
    """An acknowledged record is not where it was acknowledged."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A record of a probe."""

    probe: str
    """The id of the process."""
    sequence: int
    partition: int
    sent_ms: int

    def encoded(self) -> NewRecord:
        # Without a key: a compacted topic, which would take old ones out, refuses it.
        return NewRecord(self.sent_ms, None, json.dumps({"of": _MARK, **asdict(self)}).encode())


def decoded(value: bytes | None) -> Sent | None:
    """None: the record is not of a probe."""
    try:
        told = json.loads(value or b"null")
        if told["of"] != _MARK:
            return None
        # Fields of a newer release are passed over.
        return Sent(str(told["probe"]), int(told["sequence"]), int(told["partition"]), int(told["sent_ms"]))
    except (ValueError, KeyError, TypeError):
        return None


class Expected:
    """The acknowledged records of one partition that must be there: the newest, and the one of the round before."""

    def __init__(self, place: str, offset: int, sent: Sent, before: tuple[int, Sent] | None) -> None:
        """`offset`: where an agent says that `sent` is. Raises LostRecordError if that cannot be."""
        if before is not None and offset <= before[0]:
            raise LostRecordError(
                f"{place}: record {sent.sequence} was acknowledged at offset {offset}, after record"
                f" {before[1].sequence} at offset {before[0]}: the log went back",
                remedy=SEE_LOST,
            )
        self._place = place
        self._offset, self._sent, self._before = offset, sent, before
        self.position = offset if before is None else before[0]
        """Read on from here."""

    @property
    def is_done(self) -> bool:
        return self.position > self._offset

    def deleted(self) -> None:
        """The position is not in the log. The record of the round before may have been deleted meanwhile; the newest is
        not known yet to the agent that was asked."""
        self.position = self._offset

    def read(self, records: Mapping[int, OutputRecord], next_offset: int) -> None:
        """Take what is in the log from `position` to `next_offset`. Raises LostRecordError."""
        wanted = {self._offset: self._sent}
        if self._before is not None:
            wanted[self._before[0]] = self._before[1]
        for offset, sent in sorted(wanted.items()):
            if not self.position <= offset < next_offset:
                continue
            record = records.get(offset)
            found = None if record is None else decoded(record.value)
            if found != sent:
                what = "nothing" if record is None else "another record" if found is None else f"{found}"
                raise LostRecordError(
                    f"{self._place}: at offset {offset}, where record {sent.sequence} was acknowledged, is {what}",
                    remedy=SEE_LOST,
                )
        self.position = max(self.position, next_offset)
