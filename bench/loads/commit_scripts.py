"""Scripts for pgbench that commit L0 files as agents do, so that the figures are those of Postgres alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from metadata.contract.l0_commit import CommitL0, L0Batch
from metadata.contract.leases import WriterLease
from metadata.postgres.log.commit_calls import CommitCall, any_call, usual_call
from metadata.rules.usual_commit import usual_commit

RECORDS = 10
_NOW_MS = 1_800_000_000_000
_SEQ, _SEQUENCE = 777_000_777, 888_000_888
"""Numbers that stand in the text of a call where each commit has another one."""
_BATCH_BYTES = 1_600
_EXPIRATION_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class Commits:
    """The commits of one session: always the same partitions, one batch of ten records for each."""

    writer_id: int
    partition_ids: Sequence[int]
    producer_id: int = -1

    def before(self) -> str:
        """As programs of schemas 0001 to 0005 call it."""
        call = any_call(self._request(), frozenset(), producer_id_expiration_ms=_EXPIRATION_MS)
        return self._script(call.alone)

    def alone(self) -> str:
        return self._script(self._usual().alone)

    def behind_gate(self) -> str:
        return self._script(self._usual().behind_gate)

    def _usual(self) -> CommitCall:
        request = self._request()
        usual = usual_commit(request)
        assert usual is not None
        return usual_call(request, usual, lock_timeout_ms=None)

    def _script(self, text: str) -> str:
        """The text with `:n` in the place of the numbers, and `\\;` between statements that go as one message."""
        key = self._request().key
        count = len(self.partition_ids)
        same = ",".join([str(_SEQUENCE)] * count)
        text = text.replace(f"'{_SEQ}'::bigint", ":n")
        text = text.replace(f"'{{{same}}}'::integer[]", f"array_fill((:n * {RECORDS})::integer, ARRAY[{count}])")
        text = text.replace(f"convert_from('\\x{key.encode().hex()}', 'UTF8')", f"'{key}' || :n")
        return "\\set n :n + 1\n" + text.replace("; ", " \\; ") + ";\n"

    def _request(self) -> CommitL0:
        idempotent = self.producer_id >= 0
        batches = [
            L0Batch(
                partition_id=partition_id,
                position=number * _BATCH_BYTES,
                length=_BATCH_BYTES,
                record_count=RECORDS,
                min_timestamp_ms=_NOW_MS,
                max_timestamp_ms=_NOW_MS + number,
                producer_id=self.producer_id,
                producer_epoch=0 if idempotent else -1,
                base_sequence=_SEQUENCE if idempotent else -1,
            )
            for number, partition_id in enumerate(self.partition_ids)
        ]
        return CommitL0(
            lease=WriterLease(writer_id=self.writer_id, epoch=0),
            seq=_SEQ,
            key=f"l0/bench/0000495000/{self.writer_id}-",
            size_bytes=_BATCH_BYTES * len(batches),
            crc32c=0,
            batches=batches,
        )
