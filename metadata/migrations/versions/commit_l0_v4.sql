-- Commit of one usual L0 file: every batch of it is stored. One statement for the watermarks and one for the producers
-- take the locks, judge and give the offsets. `metadata/rules/usual_commit.py` makes the arguments. As
-- `commit_l0_v3.sql`, which programs of older schemas call, and with transactions.
--
-- A file is usual if its writer goes on, its key is new, its partitions exist, each of its producers is new or has a new
-- epoch and begins at sequence 0, or goes on in its epoch, and its batches fit the transactions of their partitions. For
-- any other file it raises SL010 and leaves nothing behind; then `commit_l0_v5` judges batch by batch. Both take their
-- locks in the same order: the writer's row, then the rows of the watermarks in the order of the arguments, which
-- ascend. Neither locks a transaction: its row on a partition changes only under the lock of the watermark.
--
-- VOLATILE at READ COMMITTED, for the reasons in `commit_l0_v5.sql`.
--
-- Each row is found by the newest entry of the index that can be seen: a backward scan that ends at its first row. While
-- somebody holds an old snapshot, no version of a row goes away, and a forward scan would walk over all of them.
--
-- The plan must be the same at all times: a nested loop over the arguments and that scan. It locks the rows in order, and
-- its cost does not depend on the tables. The bounds on both sides of a key say what `=` says; with `=` Postgres drops
-- the ORDER BY as needless and scans forward.
CREATE FUNCTION commit_l0_v4(
    p_writer_id integer, p_epoch integer, p_seq bigint, p_key text, p_size_bytes bigint, p_crc32c bigint,
    p_lock_timeout_ms integer,  -- 55P03 when a row is locked for longer, or was moved meanwhile; NULL: wait, and SL010
    -- Per partition, ascending: its records, and the 24 bytes of its index row after the offsets.
    p_partition integer[], p_records bigint[], p_places bytea, p_max_ts bigint,
    -- Per run (the batches of one producer on one partition): its partition's number, from 1; the records of that
    -- partition before it in this file; its own records.
    p_at integer[], p_before bigint[], p_count bigint[],
    p_producer bigint[], p_producer_epoch integer[], p_sequence integer[],
    p_txn_seq bigint[],  -- -1: not transactional; empty: none of the runs is
    -- Per batch of the runs, at most the last 5 of each: the number of its run, from 1, and the same about it. Empty when
    -- each run is one batch.
    p_run integer[], p_batch_before bigint[], p_batch_count integer[], p_batch_sequence integer[],
    p_append_time bigint[]  -- of the same batches; empty: -1 for all of them
) RETURNS TABLE (file_id bigint, index bytea, txn bytea, created_ms bigint)
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_now bigint;
    v_file_id bigint;
    v_moved bigint;
    v_base bigint[];    -- per partition
    v_index bytea;
    v_tails bytea[];    -- per run; NULL when each run is one batch
    v_times bytea[];    -- per run; NULL when no batch has an append time
    v_known bigint;
    v_new bigint;
    v_txn bytea;        -- the transactions that begin here
BEGIN
    IF cardinality(p_partition) = 0 OR 1 > ANY (p_records)
        OR octet_length(p_places) <> 24 * cardinality(p_partition) THEN
        RAISE EXCEPTION 'file % has no records or no places', p_key USING ERRCODE = 'SL010';
    END IF;
    IF p_lock_timeout_ms IS NOT NULL THEN
        PERFORM set_config('lock_timeout', p_lock_timeout_ms::text, true);
    END IF;

    -- 1. Locks. The row of the writer is moved at once: if it does not move, the file is a repeat or is refused.
    UPDATE writers w SET last_seq = p_seq
    WHERE w.ctid = (SELECT x.ctid FROM writers x WHERE x.writer_id BETWEEN p_writer_id AND p_writer_id
            ORDER BY x.writer_id DESC LIMIT 1)
        AND w.epoch = p_epoch AND w.last_seq < p_seq;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'writer % does not go on with seq %', p_writer_id, p_seq USING ERRCODE = 'SL010';
    END IF;

    --    44 bytes a partition, as in `commit_l0_v1`. Rows may return in any order, so they are put in order by number.
    WITH moved AS (
        UPDATE watermarks w SET next_offset = w.next_offset + b.records
        FROM unnest(p_partition, p_records) WITH ORDINALITY AS b(partition_id, records, ord)
        WHERE w.ctid = (SELECT x.ctid FROM watermarks x WHERE x.partition_id BETWEEN b.partition_id AND b.partition_id
            ORDER BY x.partition_id DESC LIMIT 1)
        RETURNING w.partition_id, w.next_offset, b.records, b.ord::integer AS ord
    )
    SELECT count(*), array_agg(m.next_offset - m.records ORDER BY m.ord),
        string_agg(int4send(m.partition_id) || int8send(m.next_offset - m.records) || int8send(m.next_offset - 1)
            || substr(p_places, 24 * m.ord - 23, 24), ''::bytea ORDER BY m.ord)
    INTO v_moved, v_base, v_index FROM moved m;
    --    A row that another commit moved while this one waited for it has another ctid, so it is not found.
    IF v_moved <> cardinality(p_partition) THEN
        RAISE EXCEPTION '% of the partitions of % exist or stood still', v_moved, p_key
        USING ERRCODE = CASE WHEN p_lock_timeout_ms IS NULL THEN 'SL010' ELSE '55P03' END;
    END IF;
    v_now := clock_ms();

    -- 2. Producers, after the locks, so that these statements see each batch that was committed before.
    IF cardinality(p_at) > 0 THEN
        IF cardinality(p_run) > 0 THEN
            SELECT array_agg(t.tail ORDER BY t.run) INTO v_tails FROM (
                SELECT b.run, string_agg(int8send(v_base[p_at[b.run]] + b.before) || int4send(b.sequence)
                    || int4send(b.records), ''::bytea ORDER BY b.ord) AS tail
                FROM unnest(p_run, p_batch_before, p_batch_sequence, p_batch_count) WITH ORDINALITY
                    AS b(run, before, sequence, records, ord)
                GROUP BY b.run
            ) AS t;
        END IF;
        IF cardinality(p_append_time) > 0 THEN
            SELECT array_agg(t.times ORDER BY t.run) INTO v_times FROM (
                SELECT coalesce(b.run, b.ord) AS run, string_agg(int8send(b.ms), ''::bytea ORDER BY b.ord) AS times
                FROM unnest(p_append_time, p_run) WITH ORDINALITY AS b(ms, run, ord)
                GROUP BY 1
            ) AS t;
        END IF;
        UPDATE producer_states p SET
            next_sequence = ((b.sequence + b.records) % 2147483648)::integer,
            last_seen_ms = v_now,
            epoch = b.epoch,
            tail = CASE WHEN p.epoch < b.epoch THEN coalesce(b.tail,
                    int8send(v_base[b.at] + b.before) || int4send(b.sequence) || int4send(b.records::integer))
                WHEN b.tail IS NULL THEN
                substr(p.tail || int8send(v_base[b.at] + b.before) || int4send(b.sequence) || int4send(b.records::integer),
                    greatest(octet_length(p.tail) - 63, 1))
                ELSE substr(p.tail || b.tail, greatest(octet_length(p.tail) + octet_length(b.tail) - 79, 1)) END,
            append_times = CASE WHEN p.epoch < b.epoch THEN b.times
                WHEN p.append_times IS NULL AND b.times IS NULL THEN NULL ELSE
                append_times_of(p.append_times, p.tail, b.times, coalesce(b.tail, '\x00000000000000000000000000000000'))
                END
        FROM unnest(p_at, p_before, p_count, p_producer, p_producer_epoch, p_sequence, v_tails, v_times)
            AS b(at, before, records, producer_id, epoch, sequence, tail, times)
        WHERE p.ctid = (SELECT x.ctid FROM producer_states x WHERE x.partition_id = p_partition[b.at]
                AND x.producer_id BETWEEN b.producer_id AND b.producer_id ORDER BY x.producer_id DESC LIMIT 1)
            AND ((p.epoch = b.epoch AND p.next_sequence = b.sequence) OR (p.epoch < b.epoch AND b.sequence = 0));
        GET DIAGNOSTICS v_known = ROW_COUNT;
        IF v_known < cardinality(p_at) THEN
            -- The rest must be new on their partition. Nobody else adds one: the row of the partition is locked.
            INSERT INTO producer_states
                (partition_id, producer_id, epoch, next_sequence, last_seen_ms, tail, append_times)
            SELECT p_partition[b.at], b.producer_id, b.epoch, (b.records % 2147483648)::integer, v_now,
                coalesce(b.tail,
                    int8send(v_base[b.at] + b.before) || int4send(b.sequence) || int4send(b.records::integer)),
                b.times
            FROM unnest(p_at, p_before, p_count, p_producer, p_producer_epoch, p_sequence, v_tails, v_times)
                AS b(at, before, records, producer_id, epoch, sequence, tail, times)
            WHERE b.sequence = 0 AND NOT EXISTS (SELECT FROM producer_states x
                WHERE x.partition_id = p_partition[b.at] AND x.producer_id = b.producer_id);
            GET DIAGNOSTICS v_new = ROW_COUNT;
            IF v_known + v_new <> cardinality(p_at) THEN
                RAISE EXCEPTION 'a producer of % does not go on', p_key USING ERRCODE = 'SL010';
            END IF;
        END IF;

        -- Transactions, after the locks too: who ends one holds the locks of its partitions.
        IF cardinality(p_txn_seq) = 0 THEN
            IF EXISTS (
                SELECT FROM unnest(p_at, p_producer) AS b(at, producer_id)
                JOIN transaction_partitions t ON t.producer_id = b.producer_id AND t.partition_id = p_partition[b.at]
            ) THEN
                RAISE EXCEPTION 'a producer of % is in a transaction', p_key USING ERRCODE = 'SL010';
            END IF;
        ELSE
            IF EXISTS (
                SELECT FROM unnest(p_at, p_producer, p_producer_epoch, p_txn_seq) AS b(at, producer_id, epoch, txn_seq)
                LEFT JOIN transaction_partitions t
                    ON t.producer_id = b.producer_id AND t.partition_id = p_partition[b.at]
                WHERE CASE WHEN b.txn_seq = -1 THEN t.producer_id IS NOT NULL
                    ELSE (t.epoch = b.epoch AND t.txn_seq = b.txn_seq) IS NOT TRUE END
            ) THEN
                RAISE EXCEPTION 'a transaction of % has ended', p_key USING ERRCODE = 'SL010';
            END IF;
            WITH begun AS (
                UPDATE transaction_partitions t SET first_offset = v_base[b.at] + b.before
                FROM unnest(p_at, p_before, p_producer, p_txn_seq) AS b(at, before, producer_id, txn_seq)
                WHERE b.txn_seq <> -1 AND t.producer_id = b.producer_id AND t.partition_id = p_partition[b.at]
                    AND t.first_offset IS NULL
                RETURNING t.partition_id, t.producer_id, t.first_offset
            )
            SELECT '\x01'::bytea || string_agg('\x00'::bytea || int4send(b.partition_id) || int8send(b.producer_id)
                || int8send(b.first_offset) || int8send(b.first_offset), ''::bytea
                ORDER BY b.partition_id, b.first_offset)
            INTO v_txn FROM begun b;
        END IF;
    END IF;

    -- 3. The id after the locks, so that ids ascend with offsets, and so that the transaction has its own id before:
    --    `metadata/postgres/log/tail.py` relies on both. A key that is known, aborted or too old is no usual one.
    v_file_id := nextval('file_ids');
    v_index := '\x01'::bytea || v_index;
    -- `results` stays empty: the answers follow from the index (`metadata/rules/results.py`).
    INSERT INTO files (
        file_id, key, level, state, writer_id, epoch, seq, lo, hi, size_bytes, crc32c, created_ms, live_extents,
        max_ts_ms, index, txn
    ) VALUES (
        v_file_id, p_key, 0, 'live', p_writer_id, p_epoch, p_seq, v_file_id, v_file_id, p_size_bytes, p_crc32c, v_now,
        cardinality(p_partition), p_max_ts, v_index, v_txn
    ) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'key % is known', p_key USING ERRCODE = 'SL010';
    END IF;
    --    After the INSERT: it may have waited for a janitor that forgot the row of an aborted key and raised this mark.
    IF (regexp_match(p_key, '/([0-9]{10})/'))[1]::bigint <= (SELECT c.forgotten_key_hour FROM cluster c) THEN
        RAISE EXCEPTION 'key % is too old', p_key USING ERRCODE = 'SL010';
    END IF;
    RETURN QUERY SELECT v_file_id, v_index, v_txn, v_now;
END
$$;
