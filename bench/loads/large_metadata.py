"""A metadata database as large as one wishes, filled by SQL alone: nothing stands behind its files.

The functions fill an empty, migrated database in this order: topics, writers, producers, merged files, the backlog of
L0 files. Partitions take part in turn and their offsets leave no gap, so every statement of Siltstone works on the
rows.
"""

from __future__ import annotations

from metadata.postgres.driver import Connection

RECORDS = 100
"""Offsets of each extent and of each batch in L0."""
BYTES = 10_000
"""Of each of them."""


async def fill_topics(line: Connection, *, topics: int, partitions: int, compacted: int = 0) -> None:
    """`partitions` partitions over `topics` topics. The first `compacted` topics are compacted, the others keep their
    records for 15 to 44 days, and every tenth of these for ever."""
    await line.execute(
        """INSERT INTO topics (topic_id, name, configs, created_ms)
        SELECT md5('topic ' || n)::uuid, 'topic-' || n, CASE
            WHEN n < $2 THEN '{"cleanup.policy": "compact"}'
            WHEN n % 10 = 9 THEN '{"retention.ms": "-1"}'
            ELSE jsonb_build_object('retention.ms', ((15 + n % 30) * 86400000::bigint)::text) END, clock_ms()
        FROM generate_series(0, $1::integer - 1) n""",
        topics,
        compacted,
    )
    await line.execute(
        """INSERT INTO partitions (partition_id, topic_id, partition, created_ms)
        SELECT 1 + n, md5('topic ' || t)::uuid, row_number() OVER (PARTITION BY t) - 1, clock_ms()
        FROM generate_series(0, $2::integer - 1) n, LATERAL (SELECT n::bigint * $1::integer / $2 AS t) AS t""",
        topics,
        partitions,
    )
    await line.execute("SELECT setval('partition_ids', $1)", partitions)
    await line.execute("INSERT INTO watermarks (partition_id) SELECT partition_id FROM partitions")
    await line.execute("INSERT INTO log_starts (partition_id) SELECT partition_id FROM partitions")


async def fill_writers(line: Connection, *, writers: int) -> None:
    """Writers of the past: none of them runs."""
    await line.execute(
        """INSERT INTO writers (writer_id, host, port, epoch, last_seq)
        SELECT n, 'agent-' || n, 9092, 1, 0 FROM generate_series(1, $1::integer) n""",
        writers,
    )
    await line.execute("SELECT setval('node_ids', $1)", max(writers, 1))


async def fill_producers(line: Connection, *, producers: int) -> None:
    """Producers with one batch each, in all partitions in turn."""
    await line.execute(
        """INSERT INTO producer_states (partition_id, producer_id, epoch, next_sequence, last_seen_ms, tail)
        SELECT 1 + n % p.number, n, 0, 1, clock_ms(), int8send(0) || int4send(0) || int4send(1)
        FROM generate_series(0, $1::integer - 1) n, (SELECT count(*)::integer AS number FROM partitions) p""",
        producers,
    )


async def fill_merged(line: Connection, *, files: int, extents: int, apart_ms: int = 60_000) -> None:
    """Live L1 and L2 files with `extents` live extents, spread over all partitions in offset order. The newest file is
    of now, each file `apart_ms` older than the next.

    Triggers are off meanwhile; the sums are made at the end, as the migration makes them.
    """
    first = await line.fetchval(
        """WITH made AS (
            INSERT INTO files (key, level, state, class, lo, hi, size_bytes, crc32c, created_ms, max_ts_ms, job_id,
                live_extents)
            SELECT 'merged/' || n, 1 + (n % 10 > 0)::integer, 'live', 'plain', n, n, $2 / $1 * $3::bigint, 0,
                clock_ms() - ($1 - n) * $4::bigint, clock_ms() - ($1 - n) * $4::bigint, n / 10, $2 / $1
            FROM generate_series(0, $1::bigint - 1) n RETURNING file_id
        ) SELECT min(file_id) FROM made""",
        files,
        extents,
        BYTES,
        apart_ms,
    )
    await line.execute("ALTER TABLE extents DISABLE TRIGGER USER")
    await line.execute(
        """INSERT INTO extents (partition_id, base_offset, last_offset, file_id, position, length, block_index_position,
            block_index_length, record_count, crc32c, min_ts_ms, max_ts_ms, state, uncompressed_bytes, committed_ms)
        SELECT 1 + n % p.number, n / p.number * $4::bigint, (n / p.number + 1) * $4 - 1,
            $3::bigint + n * $1::bigint / $2, 0, $5::bigint, 0, 100, $4, 0, t.ms - 60000, t.ms + n % 1000, 'live',
            2 * $5, t.ms
        FROM generate_series(0, $2::bigint - 1) n, (SELECT count(*) AS number FROM partitions) p
        CROSS JOIN LATERAL (SELECT clock_ms() - ($1 - n * $1::bigint / $2) * $6::bigint AS ms) t""",
        files,
        extents,
        first,
        RECORDS,
        BYTES,
        apart_ms,
    )
    await line.execute("ALTER TABLE extents ENABLE TRIGGER USER")
    await line.execute("SELECT make_sums_v1()")
    await line.execute(
        """UPDATE watermarks w SET next_offset = s.live_extents * $1::bigint
        FROM partition_sums s WHERE s.partition_id = w.partition_id""",
        RECORDS,
    )


async def fill_l0(line: Connection, *, files: int, partitions_each: int) -> None:
    """Live L0 files of one writer, each with a batch for `partitions_each` partitions, behind what is merged."""
    writer_id = await line.fetchval(
        "INSERT INTO writers (host, port, epoch, last_seq) VALUES ('l0', 9092, 1, $1) RETURNING writer_id", files - 1
    )
    # The rows of the index are those of `metadata/rules/packed_index.py`.
    await line.execute(
        r"""INSERT INTO files (key, level, state, writer_id, epoch, seq, size_bytes, crc32c, created_ms, index)
        SELECT 'l0/' || n, 0, 'live', $3, 1, n, $2 * $5::bigint, 0, clock_ms() - ($1 - n) * 20, x.index
        FROM generate_series(0, $1::bigint - 1) n, (SELECT count(*) AS number FROM partitions) p
        CROSS JOIN LATERAL (
            SELECT '\x01'::bytea || string_agg(int4send(w.partition_id) || int8send(o.base)
                || int8send(o.base + $4 - 1) || int4send((i * $5)::integer) || int4send($5::integer)
                || int8send(0) || int8send(0), ''::bytea ORDER BY i) AS index
            FROM generate_series(0, $2::bigint - 1) i JOIN watermarks w ON w.partition_id = 1 + (n * $2 + i) % p.number
            CROSS JOIN LATERAL (SELECT w.next_offset + (n * $2 + i) / p.number * $4 AS base) o
        ) AS x""",
        files,
        partitions_each,
        writer_id,
        RECORDS,
        BYTES,
    )
    await line.execute(
        """UPDATE watermarks w SET next_offset = w.next_offset + x.batches * $3::bigint FROM (
            SELECT 1 + k % p.number AS partition_id, count(*) AS batches
            FROM generate_series(0, $1::bigint * $2::bigint - 1) k, (SELECT count(*) AS number FROM partitions) p
            GROUP BY 1
        ) AS x WHERE x.partition_id = w.partition_id""",
        files,
        partitions_each,
        RECORDS,
    )


async def fill_gone(line: Connection, *, dead: int, deleted: int) -> None:
    """L0 files of a former writer that were merged: `deleted` objects that went three days ago, whose rows may be
    forgotten, and `dead` ones that died an hour ago."""
    await line.execute(
        """WITH writer AS (
            INSERT INTO writers (host, port, epoch, last_seq) VALUES ('gone', 9092, 1, $1::bigint + $2 - 1)
            RETURNING writer_id
        )
        INSERT INTO files (key, level, state, writer_id, epoch, seq, size_bytes, crc32c, created_ms, dead_ms)
        SELECT 'gone/' || n, 0, CASE WHEN n < $1 THEN 'deleted' ELSE 'dead' END, w.writer_id, 1, n, 0, 0, t.ms, t.ms
        FROM writer w, generate_series(0, $1::bigint + $2 - 1) n CROSS JOIN LATERAL (
            SELECT clock_ms() - (CASE WHEN n < $1 THEN 72 ELSE 1 END) * 3600000 AS ms
        ) AS t""",
        deleted,
        dead,
    )


async def settle(line: Connection) -> None:
    """Statistics and visibility as autovacuum leaves them."""
    await line.execute("VACUUM (ANALYZE)")
