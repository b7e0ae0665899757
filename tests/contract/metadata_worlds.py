"""Both metadata stores as worlds. A test can do things to a world that no agent can do: kill, age, expire."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import pytest

from metadata.contract.files import FileState
from metadata.contract.l0_commit import BatchResult, CommitL0, Committed, L0Batch
from metadata.contract.leases import AgentAddress, WriterLease
from metadata.contract.store import MetadataStore
from metadata.contract.topics import Topic
from metadata.memory.store import MemoryDatabase, MemoryMetadata
from metadata.rules.packed_index import IndexRow, decode_index
from runtime.clock import SystemClock
from runtime.errors import SiltstoneError
from runtime.runtime import Runtime
from tests.fixtures.metadata_parts import Divided
from tests.fixtures.postgres import run_sql, standing_clock

DAY_MS = 86_400_000
BATCH_BYTES = 100


class World(Protocol):
    """A store, and services on it. `service` is already open."""

    service: MetadataStore

    async def another(self, *, producer_id_expiration_ms: int = DAY_MS) -> MetadataStore:
        """Open one more service on the same store, as another agent would."""
        ...

    async def expire_leases(self) -> None: ...

    async def set_state(self, file_id: int, state: FileState) -> None: ...

    async def forget_rows(self, *, producer_id_expiration_ms: int = DAY_MS) -> None:
        """Forget all rows that may be forgotten."""
        ...

    async def lapse_jobs(self) -> None:
        """End the leases of all running jobs and of all compactors."""
        ...

    async def pass_deadlines(self) -> None:
        """Put all running jobs past their time limit."""
        ...

    async def end_rests(self, *, later_ms: int = -1) -> None:
        """Let the rest of all jobs end `later_ms` from now."""
        ...

    async def age_dead_files(self, ms: int) -> None:
        """Move the deaths of all dead files back by `ms`."""
        ...

    async def set_death(self, file_id: int, dead_ms: int) -> None:
        """Set the time at which a dead file died."""
        ...

    async def set_clock(self, now_ms: int) -> None:
        """Let the store's clock stand at this time from now on."""
        ...

    async def end_pins_and_duties(self) -> None:
        """End all pins and duties."""
        ...

    async def age_erasures(self, ms: int) -> None:
        """Move all times of all erasures back by `ms`."""
        ...

    async def age_group(self, group_id: str, ms: int) -> None:
        """Move the time at which the group became empty back by `ms`. Does nothing if the group has members."""
        ...

    async def age_offsets(self, group_id: str, ms: int) -> None:
        """Move the commits of all offsets of the group back by `ms`."""
        ...

    async def set_producer_epoch(self, producer_id: int, epoch: int) -> None:
        """Put a transactional producer to this epoch."""
        ...

    async def set_clock_back(self, ms: int) -> None:
        """Set the store's clock back by `ms`: every lease and duty ends `ms` later instead."""
        ...

    async def another_server(self) -> None:
        """Put the database into another Postgres than the adopted one, like a restore from a dump."""
        ...

    async def close(self) -> None: ...


class StandingClock(SystemClock):
    """The machine's clock, until a test sets its time."""

    def __init__(self) -> None:
        self.now_ms: int | None = None

    def wall_ms(self) -> int:
        return super().wall_ms() if self.now_ms is None else self.now_ms


class MemoryWorld:
    def __init__(self) -> None:
        self._clock = StandingClock()
        self._runtime = Runtime(clock=self._clock)
        self.service: MetadataStore = MemoryMetadata(runtime=self._runtime)
        self._services: list[MemoryMetadata] = [self.service]  # type: ignore[list-item]
        self._database: MemoryDatabase = self._services[0].database

    async def another(self, *, producer_id_expiration_ms: int = DAY_MS) -> MetadataStore:
        expiration = {"producer_id_expiration_ms": producer_id_expiration_ms}
        service = MemoryMetadata(runtime=self._runtime, database=self._database, **expiration)
        self._services.append(service)
        await service.open()
        return service

    async def expire_leases(self) -> None:
        for writer in self._database.writers.values():
            if writer.lease_until_ms is not None:
                writer.lease_until_ms = SystemClock().wall_ms() - 1
            writer.former_until_ms = 0

    async def set_state(self, file_id: int, state: FileState) -> None:
        file = self._database.files[file_id]
        file.info = replace(file.info, state=state)

    async def forget_rows(self, *, producer_id_expiration_ms: int = DAY_MS) -> None:
        await self.another(producer_id_expiration_ms=producer_id_expiration_ms)
        await self._services[-1].deletion.forget_rows(before_ms=SystemClock().wall_ms() + DAY_MS)

    async def lapse_jobs(self) -> None:
        past_ms = SystemClock().wall_ms() - 1
        for job in self._database.jobs.values():
            if job.row.lease_until_ms is not None:
                job.row = replace(job.row, lease_until_ms=past_ms)
        for compactor in self._database.compactors.values():
            compactor.lease_until_ms = past_ms

    async def pass_deadlines(self) -> None:
        for job in self._database.jobs.values():
            if job.row.deadline_ms is not None:
                job.row = replace(job.row, deadline_ms=SystemClock().wall_ms() - 1)

    async def end_rests(self, *, later_ms: int = -1) -> None:
        for job in self._database.jobs.values():
            job.row = replace(job.row, not_before_ms=SystemClock().wall_ms() + later_ms)

    async def age_dead_files(self, ms: int) -> None:
        for file in self._database.files.values():
            if file.info.dead_ms is not None:
                file.info = replace(file.info, dead_ms=file.info.dead_ms - ms)

    async def set_death(self, file_id: int, dead_ms: int) -> None:
        file = self._database.files[file_id]
        file.info = replace(file.info, dead_ms=dead_ms)

    async def set_clock(self, now_ms: int) -> None:
        self._clock.now_ms = now_ms

    async def end_pins_and_duties(self) -> None:
        past_ms = SystemClock().wall_ms() - 1
        for pin in self._database.pins.values():
            pin.expires_ms = past_ms
        self._database.duties = {name: (holder, past_ms) for name, (holder, _) in self._database.duties.items()}

    async def age_erasures(self, ms: int) -> None:
        for each in self._database.erasures.values():
            row = each.row
            times = {
                "created_ms": row.created_ms - ms,
                "next_ms": row.next_ms - ms,
                "begin_ms": row.begin_ms - ms,
                "deadline_ms": row.deadline_ms - ms,
                "done_ms": None if row.done_ms is None else row.done_ms - ms,
            }
            each.row = replace(row, **times)  # type: ignore[arg-type]

    async def age_group(self, group_id: str, ms: int) -> None:
        group = self._database.groups[group_id]
        if group.empty_since_ms is not None:
            group.empty_since_ms -= ms

    async def age_offsets(self, group_id: str, ms: int) -> None:
        offsets = self._database.groups[group_id].offsets
        for place, offset in offsets.items():
            offsets[place] = replace(offset, committed_ms=offset.committed_ms - ms)

    async def set_producer_epoch(self, producer_id: int, epoch: int) -> None:
        tables = self._database.transactions
        for name, row in tables.by_id.items():
            if row.producer_id == producer_id:
                tables.by_id[name] = replace(row, producer_epoch=epoch)

    async def set_clock_back(self, ms: int) -> None:
        database = self._database
        for holder in (*database.writers.values(), *database.compactors.values()):
            if holder.lease_until_ms is not None:
                holder.lease_until_ms += ms
        for job in database.jobs.values():
            if job.row.lease_until_ms is not None:
                job.row = replace(job.row, lease_until_ms=job.row.lease_until_ms + ms)
        database.duties = {name: (holder, until_ms + ms) for name, (holder, until_ms) in database.duties.items()}

    async def another_server(self) -> None:
        server = self._database.server
        self._database.server = server._replace(system_identifier=server.system_identifier + 1)

    async def close(self) -> None:
        for service in self._services:
            await service.close()


class PostgresWorld:
    def __init__(self, url: str) -> None:
        self.url = url
        self.service: MetadataStore = Divided(url)
        self._services: list[Any] = [self.service]

    async def another(self, *, producer_id_expiration_ms: int = DAY_MS) -> MetadataStore:
        service = Divided(self.url, producer_id_expiration_ms=producer_id_expiration_ms)
        self._services.append(service)
        await service.open()
        return service

    async def expire_leases(self) -> None:
        await run_sql(self.url, "UPDATE agents SET lease_until_ms = clock_ms() - 1, former_until_ms = 0")

    async def set_state(self, file_id: int, state: FileState) -> None:
        await run_sql(self.url, f"UPDATE files SET state = '{state.value}' WHERE file_id = {file_id}")

    async def forget_rows(self, *, producer_id_expiration_ms: int = DAY_MS) -> None:
        await self.another(producer_id_expiration_ms=producer_id_expiration_ms)
        await self._services[-1].deletion.forget_rows(before_ms=SystemClock().wall_ms() + DAY_MS)

    async def lapse_jobs(self) -> None:
        await run_sql(
            self.url,
            "UPDATE merge_jobs SET lease_until_ms = clock_ms() - 1 WHERE lease_until_ms IS NOT NULL",
            "UPDATE compactors SET lease_until_ms = clock_ms() - 1",
        )

    async def pass_deadlines(self) -> None:
        await run_sql(self.url, "UPDATE merge_jobs SET deadline_ms = clock_ms() - 1 WHERE deadline_ms IS NOT NULL")

    async def end_rests(self, *, later_ms: int = -1) -> None:
        await run_sql(self.url, f"UPDATE merge_jobs SET not_before_ms = clock_ms() + {later_ms}")

    async def age_dead_files(self, ms: int) -> None:
        await run_sql(self.url, f"UPDATE files SET dead_ms = dead_ms - {ms} WHERE dead_ms IS NOT NULL")

    async def set_death(self, file_id: int, dead_ms: int) -> None:
        await run_sql(self.url, f"UPDATE files SET dead_ms = {dead_ms} WHERE file_id = {file_id}")

    async def set_clock(self, now_ms: int) -> None:
        await run_sql(self.url, standing_clock(str(int(now_ms))))

    async def end_pins_and_duties(self) -> None:
        await run_sql(
            self.url, "UPDATE pins SET expires_ms = clock_ms() - 1", "UPDATE duties SET until_ms = clock_ms() - 1"
        )

    async def age_erasures(self, ms: int) -> None:
        times = ("created_ms", "next_ms", "begin_ms", "deadline_ms", "done_ms")
        await run_sql(self.url, f"UPDATE erasures SET {', '.join(f'{time} = {time} - {ms}' for time in times)}")

    async def age_group(self, group_id: str, ms: int) -> None:
        # NULL minus anything is NULL, so a group with members is not changed.
        await run_sql(
            self.url, f"UPDATE groups SET empty_since_ms = empty_since_ms - {ms} WHERE group_id = {_octets(group_id)}"
        )

    async def age_offsets(self, group_id: str, ms: int) -> None:
        await run_sql(
            self.url,
            f"UPDATE group_offsets SET committed_ms = committed_ms - {ms} WHERE group_id = {_octets(group_id)}",
        )

    async def set_producer_epoch(self, producer_id: int, epoch: int) -> None:
        await run_sql(self.url, f"UPDATE transactions SET producer_epoch = {epoch} WHERE producer_id = {producer_id}")

    async def set_clock_back(self, ms: int) -> None:
        leased = (("agents", "lease_until_ms"), ("compactors", "lease_until_ms"), ("merge_jobs", "lease_until_ms"))
        moves = (*leased, ("duties", "until_ms"))
        await run_sql(self.url, *(f"UPDATE {table} SET {column} = {column} + {ms}" for table, column in moves))

    async def another_server(self) -> None:
        # To the database this looks the same: the adopted server differs from the present one.
        await run_sql(self.url, "UPDATE cluster SET adopted_system_identifier = adopted_system_identifier - 1")

    async def close(self) -> None:
        for service in self._services:
            await service.close()


def _octets(text: str) -> str:
    """The text as a literal of type bytea."""
    return f"'\\x{text.encode().hex()}'"


@dataclass(slots=True)
class Writer:
    """An agent that commits. It numbers its files and lays the batches of each one after the other."""

    service: MetadataStore
    lease: WriterLease
    seq: int = 0

    @classmethod
    async def register(
        cls, service: MetadataStore, port: int = 9092, *, instead_of: WriterLease | None = None
    ) -> Writer:
        address = AgentAddress(host="agent", port=port)
        return cls(service=service, lease=await service.agents.register_agent(address, instead_of=instead_of))

    def request(self, batches: Sequence[L0Batch], *, key: str = "") -> CommitL0:
        """The next file of this writer, with the batches in the given order."""
        laid = [batch._replace(position=at * BATCH_BYTES) for at, batch in enumerate(batches)]
        self.seq += 1
        return CommitL0(
            lease=self.lease,
            seq=self.seq,
            key=key or new_key(),
            size_bytes=len(laid) * BATCH_BYTES,
            crc32c=0xDEADBEEF,
            batches=laid,
        )

    async def commit(self, *batches: L0Batch, key: str = "") -> Committed:
        return await self.service.agents.commit_l0(self.request(batches, key=key))


_numbers = itertools.count(1)


def new_key(hour: str = "2024010100") -> str:
    return f"l0/a7/{hour}/1-0-{next(_numbers)}.silt"


def batch(partition_id: int, count: int = 1, **fields: Any) -> L0Batch:
    """A batch without a producer. `Writer.request` sets its position."""
    values: dict[str, Any] = {"min_timestamp_ms": 10, "max_timestamp_ms": 20, **fields}
    return L0Batch(partition_id=partition_id, position=0, length=BATCH_BYTES, record_count=count, **values)


def sent(partition_id: int, producer_id: int, sequence: int, count: int = 1, *, epoch: int = 0, **more: Any) -> L0Batch:
    """A batch of an idempotent producer."""
    return batch(partition_id, count, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, **more)


def stored(base_offset: int, log_append_time_ms: int = -1) -> BatchResult:
    return BatchResult(error=0, duplicate=False, base_offset=base_offset, log_append_time_ms=log_append_time_ms)


def duplicate(base_offset: int, log_append_time_ms: int = -1) -> BatchResult:
    return BatchResult(error=0, duplicate=True, base_offset=base_offset, log_append_time_ms=log_append_time_ms)


def refused(error: int) -> BatchResult:
    return BatchResult(error=error, duplicate=False, base_offset=-1, log_append_time_ms=-1)


def offsets(committed: Committed) -> list[tuple[int, int, int]]:
    """(partition id, base offset, last offset) of each row of the packed index."""
    return [row[:3] for row in decode_index(committed.index)]


def rows(committed: Committed) -> list[IndexRow]:
    return decode_index(committed.index)


async def new_topic(service: MetadataStore, name: str = "orders", partitions: int = 1) -> Topic:
    return await service.agents.create_topic(name, partitions=partitions, configs={})


def raises_exactly(error: SiltstoneError) -> pytest.RaisesExc[SiltstoneError]:
    """The block must raise an error of this type with this text, on every store."""
    return pytest.raises(type(error), match=f"^{re.escape(str(error))}$")
