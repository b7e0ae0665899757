"""The write path when its lease is lost, and after its end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import UUID

from agents.write.buffer import SealOptions
from agents.write.path import Lease, WriteCallbacks, WritePath
from agents.write.submission import PendingBatch, Submission
from metadata.contract.errors import RightsMissingError
from metadata.contract.l0_commit import BatchResult
from metadata.contract.leases import AgentAddress, WriterLease
from metadata.contract.store import MetadataStore
from metadata.memory.store import MemoryMetadata
from runtime.metrics import Metrics
from runtime.runtime import Runtime
from storage.memory import MemoryStore
from wire.batch import read_header
from wire.error_codes import ErrorCode
from wire.records import NewRecord, build_batch

NOW_MS = 1_800_000_000_000


class LostLease:
    """A lease that another agent has taken, in a store that gives no new one."""

    def __init__(self, current: WriterLease) -> None:
        self.current = current
        self.renewals = 0

    def now_ms(self) -> int:
        return NOW_MS

    async def renew(self, fenced: WriterLease) -> None:
        self.renewals += 1
        raise RightsMissingError("permission denied for table agents")


def submission() -> Submission:
    records = memoryview(build_batch([NewRecord(NOW_MS, None, b"value")]))
    promise: asyncio.Future[Sequence[BatchResult]] = asyncio.get_running_loop().create_future()
    return Submission([PendingBatch(1, UUID(int=1), 0, records, read_header(records), False)], promise)


def write_path(store: MetadataStore, lease: Lease, metrics: Metrics) -> WritePath:
    return WritePath(
        options=SealOptions(
            linger_ms=1,
            file_bytes=1,
            file_batches=10,
            early_bytes=1,
            early_idle_ms=1,
            early_per_second=0,
            early_free_bytes=1,
        ),
        uploads_max=2,
        store=MemoryStore(),
        metadata=store.agents,
        transactions=store.transactions,
        partitions_max=10,
        lease=lease,
        callbacks=WriteCallbacks(on_committed=lambda *_: None, on_bytes_changed=lambda: None),
        runtime=Runtime(metrics=metrics),
    )


async def test_a_file_of_a_lost_lease_is_given_up_once_although_the_lease_cannot_be_renewed() -> None:
    store, metrics = MemoryMetadata(), Metrics()
    metadata = store.agents
    address = AgentAddress(host="h", port=1)
    lease = LostLease(await metadata.register_agent(address))
    await metadata.register_agent(address, instead_of=lease.current)
    path = write_path(store, lease, metrics)
    path.start()
    # when: a file is fenced, and another one after it
    for files in (1, 2):
        given = submission()
        path.submit(given)
        async with asyncio.timeout(10):
            while lease.renewals < files:
                await asyncio.sleep(0)
        # then
        assert isinstance(given.promise, asyncio.Future)
        assert [result.error for result in given.promise.result()] == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
        await asyncio.sleep(0)
        assert path.bytes == 0
        assert metrics.registry.get_sample_value("siltstone_commits_total", {"outcome": "given_up"}) == files
        assert metrics.registry.get_sample_value("siltstone_produce_batches_total", {"outcome": "failed"}) == files
    await path.close()


async def test_what_comes_after_the_drain_is_refused_at_once() -> None:
    """Nobody would commit it any more, and the agent's end would wait for its answer."""
    store = MemoryMetadata()
    lease = LostLease(await store.agents.register_agent(AgentAddress(host="h", port=1)))
    path = write_path(store, lease, Metrics())
    path.start()
    before = submission()
    path.submit(before)
    draining = asyncio.create_task(path.drain())
    await asyncio.sleep(0)
    for _ in range(2):
        late = submission()
        path.submit(late)
        assert isinstance(late.promise, asyncio.Future)
        assert [result.error for result in late.promise.result()] == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
        await draining
    assert before.promise.done()
    assert path.bytes == 0
    await path.close()
