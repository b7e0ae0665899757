"""Records with numbered keys in a topic, made fast: L0 files straight into the store, without an agent in between."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bench.loads.merge_inputs import Bytes, numbered_keys, stamped_batches
from metadata.contract.l0_commit import CommitL0, L0Batch
from metadata.contract.leases import AgentAddress
from metadata.contract.store import MetadataStore
from runtime.clock import SystemClock
from runtime.ids import SystemIds
from storage.keys import file_key
from storage.objects import ObjectStore
from wire.crc import crc32c

FILE_RECORDS, BATCH_RECORDS = 500_000, 5_000
STAMP_MS = 1_700_000_000_000
EIGHT_BYTES: Bytes = np.frombuffer(b"12345678", dtype=np.uint8).reshape(1, 8)


async def write_keys(
    metadata: MetadataStore,
    store: ObjectStore,
    partition_id: int,
    numbers: NDArray[np.int64],
    values: Bytes = EIGHT_BYTES,
) -> None:
    """A record for each number, in its order; `values` in turn. Raises ValueError if the numbers are no whole batches
    of BATCH_RECORDS.
    """
    if len(numbers) % BATCH_RECORDS:
        raise ValueError(f"{len(numbers):,} records are no whole batches of {BATCH_RECORDS:,}")
    lease = await metadata.agents.register_agent(AgentAddress(host="writer", port=1))
    for seq, first in enumerate(range(0, len(numbers), FILE_RECORDS), start=1):
        keys = numbered_keys(numbers[first : first + FILE_RECORDS])
        joined = b"".join(stamped_batches(keys, values, batch_records=BATCH_RECORDS))
        count = len(keys) // BATCH_RECORDS
        length = len(joined) // count  # batches of one shape have one size
        laid = [
            L0Batch(
                partition_id=partition_id,
                position=number * length,
                length=length,
                record_count=BATCH_RECORDS,
                min_timestamp_ms=STAMP_MS,
                max_timestamp_ms=STAMP_MS,
            )
            for number in range(count)
        ]
        now_ms = SystemClock().wall_ms()
        ids = {"writer_id": lease.writer_id, "epoch": lease.epoch, "file_uuid": SystemIds().uuid7(now_ms)}
        key = file_key(level=0, created_ms=now_ms, **ids)
        await store.put_if_absent(key, joined, crc32c=crc32c(joined))
        commit = CommitL0(lease=lease, seq=seq, key=key, size_bytes=len(joined), crc32c=crc32c(joined), batches=laid)
        committed = await metadata.agents.commit_l0(commit)
        if any(result.error for result in committed.results):
            raise RuntimeError(f"the records were refused: {committed.results}")
