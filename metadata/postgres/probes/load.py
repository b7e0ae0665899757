"""The load of a Postgres, measured for `siltstone doctor` in about a second.

No table is changed. The time of a flush is measured by messages in the write-ahead log that nobody reads. Every query
is bounded: the newest files alone are read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from metadata.postgres.connection import CONNECTION_ERRORS, connect, unavailable
from metadata.postgres.driver import Connection
from metadata.rules.packed_index import iter_index
from runtime.clock import Clock

STATEMENT_TIMEOUT_MS = 5_000
SAMPLE_MS = 1_000
WINDOW_MS = 60_000
NEWEST_FILES_MAX = 3_000
FLUSHES = 25

_MARK = """
SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS next_xid,
       pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint AS wal_bytes,
       (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS at_ms
"""
_PROCESSES = """
SELECT (SELECT count(*) FROM agents WHERE lease_until_ms > clock_ms()) AS agents,
       (SELECT count(*) FROM compactors WHERE lease_until_ms > clock_ms()) AS compactors
"""
_FILES = """
SELECT count(*) AS files, coalesce(clock_ms() - min(created_ms), 0) AS span_ms
FROM (SELECT level, created_ms FROM files ORDER BY file_id DESC LIMIT $1) AS newest
WHERE level = 0 AND created_ms > clock_ms() - $2
"""
_INDEXES = """
SELECT writer_id, index
FROM (SELECT level, writer_id, index FROM files ORDER BY file_id DESC LIMIT 64) AS newest
WHERE level = 0 AND octet_length(index) > 1
"""
_MESSAGE = "SELECT pg_logical_emit_message(true, 'siltstone', '')"
_UNFLUSHED = f"BEGIN; SET LOCAL synchronous_commit = off; {_MESSAGE}; COMMIT"


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresLoad:
    """Rates of this moment."""

    agents: int
    """With a lease that has not run out."""
    compactors: int
    files_per_s: float
    """L0 files of the last minute, each of which is one commit."""
    partitions_per_file: float
    """Of the newest files; 0 if there is none."""
    shared: bool
    """Two agents wrote to one partition, in the newest files."""
    transactions_per_s: float
    """Transaction ids that were taken, by everybody."""
    wal_bytes_per_s: float
    flush_ms: float
    """How much longer a commit takes for being flushed: to this disk, and to a synchronous standby."""


async def probe_load(url: str, clock: Clock) -> PostgresLoad:
    """Measure the load of a primary that has our schema. Raises MetadataUnavailableError."""
    connection = await connect(url, application="siltstone-doctor", statement_timeout_ms=STATEMENT_TIMEOUT_MS)
    try:
        before: Any = await connection.fetchrow(_MARK)
        await clock.sleep_ms(SAMPLE_MS)
        after: Any = await connection.fetchrow(_MARK)
        seconds = max(1, after["at_ms"] - before["at_ms"]) / 1000
        processes: Any = await connection.fetchrow(_PROCESSES)
        files: Any = await connection.fetchrow(_FILES, NEWEST_FILES_MAX, WINDOW_MS)
        partitions_per_file, shared = _spread(await connection.fetch(_INDEXES))
        return PostgresLoad(
            agents=processes["agents"],
            compactors=processes["compactors"],
            files_per_s=files_per_s(files["files"], files["span_ms"]),
            partitions_per_file=partitions_per_file,
            shared=shared,
            transactions_per_s=(after["next_xid"] - before["next_xid"]) / seconds,
            wal_bytes_per_s=(after["wal_bytes"] - before["wal_bytes"]) / seconds,
            flush_ms=await _flush_ms(connection, clock),
        )
    except CONNECTION_ERRORS as error:
        raise unavailable(error) from error
    finally:
        await connection.close()


def files_per_s(files: int, span_ms: int) -> float:
    """The rate of the newest `files`, younger than a minute; `span_ms` is the age of the oldest of them."""
    # Fewer than were asked for: the whole minute was seen.
    return files / (WINDOW_MS if files < NEWEST_FILES_MAX else max(1, span_ms)) * 1000


def _spread(files: Sequence[Mapping[str, Any]]) -> tuple[float, bool]:
    writers: defaultdict[int, set[int]] = defaultdict(set)
    counts: list[int] = []
    for file in files:
        partitions = {row.partition_id for row in iter_index(file["index"])}
        counts.append(len(partitions))
        for partition_id in partitions:
            writers[partition_id].add(file["writer_id"])
    return (fmean(counts) if counts else 0.0), any(len(each) > 1 for each in writers.values())


async def _flush_ms(connection: Connection, clock: Clock) -> float:
    async def took_ms(statement: str) -> float:
        began_ms = clock.monotonic_ms()
        await connection.execute(statement)
        return clock.monotonic_ms() - began_ms

    times = [(await took_ms(_MESSAGE), await took_ms(_UNFLUSHED)) for _ in range(FLUSHES)]
    return max(0.0, median(flushed for flushed, _ in times) - median(unflushed for _, unflushed in times))
