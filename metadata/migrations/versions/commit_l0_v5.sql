-- Commit of one L0 file: gives offsets, once, to the batches it accepts. Idempotent by object key.
--
-- As `commit_l0_v1`, which programs of older schemas call, and with transactions. It judges the files that
-- `commit_l0_v4.sql` leaves to it.
--
-- VOLATILE at READ COMMITTED: every statement sees what was committed before *it* began. That is what makes the order
-- below sound. One SQL statement would read `producers` from a snapshot older than its locks and store a retry twice;
-- a file id drawn before the locks would not be in offset order.
--
-- Errors: SL001 writer fenced, SL002 seq not above the last, SL003 key aborted, SL004 key too old; 23514 impossible
-- values. All of them, and every crash, leave nothing behind.
CREATE FUNCTION commit_l0_v5(
    p_writer_id integer, p_epoch integer, p_seq bigint,
    p_key text, p_size_bytes bigint, p_crc32c bigint, p_producer_id_expiration_ms bigint,
    -- Per batch, in arrival order; the last six may be empty: no append times, no producers, nothing masked, no
    -- transactions. A txn_seq of -1: not transactional.
    p_partition integer[], p_position integer[], p_length integer[], p_records integer[],
    p_min_ts bigint[], p_max_ts bigint[], p_append_time bigint[],
    p_producer bigint[], p_producer_epoch integer[], p_sequence integer[], p_masked integer[], p_txn_seq bigint[]
) RETURNS TABLE (
    file_id bigint, results bytea, index bytea, txn bytea, created_ms bigint, repeated boolean
)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    v_now bigint;
    v_file_id bigint;
    v_epoch integer;
    v_last_seq bigint;
    v_file record;
    v_results bytea;
    v_index bytea;
    v_stretches integer;
    v_max_ts bigint;
    -- Per batch:
    v_error integer[];
    v_impossible boolean;
    v_idempotent boolean;      -- some batch has a producer
    v_next bigint[];           -- next offset of its partition before this file
    v_original bigint[];       -- 0: none; n + 1: duplicate of base offset n; -n: of batch n of this file
    v_original_time bigint[];
    v_base bigint[];           -- base offset given, -1 when none was
    -- The producer that the loop is at:
    r record;
    v_partition integer;
    v_producer bigint;
    v_state_epoch integer;
    v_first integer[];
    v_last integer[];
    v_bases bigint[];          -- -n: batch n of this file
    v_times bigint[];
    v_verdict integer;
    v_txn bytea;               -- the transactions that begin here
BEGIN
    -- 1. Locks: the writer's row, then the watermark rows in id order, so that two commits cannot deadlock.
    SELECT w.epoch, w.last_seq INTO v_epoch, v_last_seq
    FROM writers w WHERE w.writer_id = p_writer_id FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'writer % does not exist', p_writer_id USING ERRCODE = 'SL001';
    END IF;
    PERFORM w.partition_id FROM watermarks w
    WHERE w.partition_id = ANY (p_partition) ORDER BY w.partition_id FOR NO KEY UPDATE;

    -- 2. The id after the locks, then the row. A known key is answered after the locks too: an unlocked answer could
    --    acknowledge what a synchronous standby does not have yet.
    v_file_id := nextval('file_ids');
    v_now := clock_ms();
    INSERT INTO files (file_id, key, level, state, writer_id, epoch, seq, lo, hi, size_bytes, crc32c, created_ms)
    VALUES (
        v_file_id, p_key, 0, 'live', p_writer_id, p_epoch, p_seq, v_file_id, v_file_id, p_size_bytes, p_crc32c, v_now
    )
    ON CONFLICT ON CONSTRAINT files_key DO NOTHING;
    IF NOT FOUND THEN
        SELECT f.file_id, f.state, f.writer_id, f.results, f.index, f.txn, f.created_ms INTO v_file
        FROM files f WHERE f.key = p_key;
        IF NOT FOUND THEN  -- forgotten between the two statements: begin again
            RAISE EXCEPTION 'file row of % vanished', p_key USING ERRCODE = '40001';
        END IF;
        IF v_file.state = 'aborted' OR v_file.writer_id IS NULL THEN
            RAISE EXCEPTION 'key % was aborted', p_key USING ERRCODE = 'SL003';
        END IF;
        RETURN QUERY SELECT v_file.file_id, v_file.results, v_file.index, v_file.txn, v_file.created_ms, true;
        RETURN;
    END IF;

    -- 3. Fences. Raising takes the inserted row back.
    IF v_epoch <> p_epoch THEN
        RAISE EXCEPTION 'writer % is at epoch %, not %', p_writer_id, v_epoch, p_epoch USING ERRCODE = 'SL001';
    END IF;
    IF p_seq <= v_last_seq THEN
        RAISE EXCEPTION 'seq % of writer % is not above its last, %', p_seq, p_writer_id, v_last_seq
        USING ERRCODE = 'SL002';
    END IF;
    IF (regexp_match(p_key, '/([0-9]{10})/'))[1]::bigint <= (SELECT c.forgotten_key_hour FROM cluster c) THEN
        RAISE EXCEPTION 'key % is as old as rows that were forgotten: the clock by which it was made is behind', p_key
        USING ERRCODE = 'SL004';
    END IF;

    -- 4. Judge. First what needs no producer state.
    IF cardinality(p_append_time) = 0 THEN
        p_append_time := array_fill(-1::bigint, ARRAY[cardinality(p_partition)]);
    END IF;
    v_idempotent := cardinality(p_producer) > 0;
    IF NOT v_idempotent THEN
        p_producer := array_fill(-1::bigint, ARRAY[cardinality(p_partition)]);
        p_producer_epoch := array_fill(-1, ARRAY[cardinality(p_partition)]);
        p_sequence := p_producer_epoch;
    END IF;
    IF cardinality(p_masked) = 0 THEN
        p_masked := array_fill(0, ARRAY[cardinality(p_partition)]);
    END IF;
    IF cardinality(p_txn_seq) = 0 THEN
        p_txn_seq := array_fill(-1::bigint, ARRAY[cardinality(p_partition)]);
    END IF;
    SELECT coalesce(array_agg(
            CASE WHEN b.masked <> 0 THEN b.masked WHEN w.partition_id IS NULL THEN 3 ELSE 0 END ORDER BY b.ord
        ), '{}'),
        array_agg(w.next_offset ORDER BY b.ord),
        bool_or(b.masked = 0 AND NOT (
            b.partition_id >= 0 AND b.position >= 0 AND b.length >= 1 AND b.records >= 1 AND b.append_time >= -1
            AND b.producer_id >= -1 AND b.epoch BETWEEN -1 AND 32767 AND b.sequence >= -1
            AND (b.producer_id = -1 OR (b.epoch >= 0 AND b.sequence >= 0))
            AND b.txn_seq >= -1 AND (b.producer_id <> -1 OR b.txn_seq = -1)
        ))
    INTO v_error, v_next, v_impossible
    FROM unnest(
        p_partition, p_position, p_length, p_records, p_append_time, p_producer, p_producer_epoch, p_sequence, p_masked,
        p_txn_seq
    ) WITH ORDINALITY
        AS b(partition_id, position, length, records, append_time, producer_id, epoch, sequence, masked, txn_seq, ord)
    LEFT JOIN watermarks w ON w.partition_id = b.partition_id;
    IF v_impossible THEN
        RAISE EXCEPTION 'a batch of % has impossible values', p_key USING ERRCODE = 'check_violation';
    END IF;
    v_original := array_fill(0::bigint, ARRAY[cardinality(p_partition)]);
    v_original_time := v_original;

    --    Then the batches of idempotent producers, producer by producer, in arrival order. The usual ones need no look:
    --    the only batch of its producer in this file, of the same epoch and next in sequence.
    FOR r IN
        SELECT * FROM (
            SELECT b.ord::integer AS ord, b.partition_id, b.producer_id, b.producer_epoch, b.append_time,
                b.sequence AS first_sequence,
                ((b.sequence::bigint + b.records - 1) % 2147483648)::integer AS last_sequence,
                p.epoch, p.next_sequence, x.client_version >= 2 AND b.txn_seq <> -1 AS begins_anew,
                -- Why its partition's transactions refuse it, if it is no duplicate; 0: they do not.
                CASE WHEN b.txn_seq = -1 THEN CASE WHEN t.producer_id IS NULL THEN 0 ELSE 48 END
                    WHEN t.epoch = b.producer_epoch AND t.txn_seq = b.txn_seq THEN 0
                    WHEN x.producer_epoch > b.producer_epoch THEN 47 ELSE 48 END AS txn_error,
                count(*) OVER (PARTITION BY b.partition_id, b.producer_id) AS batches
            FROM unnest(
                p_partition, p_producer, p_producer_epoch, p_sequence, p_records, p_append_time, p_txn_seq, v_error
            ) WITH ORDINALITY
                AS b(partition_id, producer_id, producer_epoch, sequence, records, append_time, txn_seq, error, ord)
            LEFT JOIN producer_states p ON p.partition_id = b.partition_id AND p.producer_id = b.producer_id
            LEFT JOIN transaction_partitions t ON t.producer_id = b.producer_id AND t.partition_id = b.partition_id
            LEFT JOIN transactions x ON x.producer_id = b.producer_id
            WHERE v_idempotent AND b.producer_id >= 0 AND b.error = 0
        ) AS u
        WHERE (
            u.batches = 1 AND u.producer_epoch = u.epoch AND u.first_sequence = u.next_sequence AND u.txn_error = 0
        ) IS NOT TRUE
        ORDER BY u.partition_id, u.producer_id, u.ord
    LOOP
        IF r.partition_id IS DISTINCT FROM v_partition OR r.producer_id IS DISTINCT FROM v_producer THEN
            v_partition := r.partition_id;
            v_producer := r.producer_id;
            SELECT p.epoch, p.first_sequences, p.last_sequences, p.base_offsets, p.log_append_times_ms
            INTO v_state_epoch, v_first, v_last, v_bases, v_times
            FROM producers p WHERE p.partition_id = v_partition AND p.producer_id = v_producer;
        END IF;
        v_verdict := 0;
        --    Duplicates first: a retry is an old sequence by nature, and its transaction may have ended.
        IF r.producer_epoch = v_state_epoch THEN
            FOR i IN 1 .. cardinality(v_first) LOOP
                IF v_first[i] = r.first_sequence AND v_last[i] = r.last_sequence THEN
                    v_original[r.ord] := CASE WHEN v_bases[i] < 0 THEN v_bases[i] ELSE v_bases[i] + 1 END;
                    v_original_time[r.ord] := v_times[i];
                    EXIT;
                END IF;
            END LOOP;
        END IF;
        IF v_original[r.ord] <> 0 THEN
            CONTINUE;
        END IF;
        IF r.txn_error <> 0 THEN
            v_verdict := r.txn_error;
        ELSIF v_state_epoch IS NULL THEN
            -- Our state is never cut short, so its absence means that an earlier batch was overtaken, unless it
            -- expired with its producer id, or went with a topic of this name that was deleted after the id was given.
            -- A transaction of the second protocol begins at sequence 0.
            IF r.first_sequence <> 0 AND (r.begins_anew IS TRUE OR NOT EXISTS (
                SELECT FROM (
                    SELECT k.first_id, k.count, k.allocated_ms FROM producer_id_blocks k
                    WHERE k.first_id <= r.producer_id ORDER BY k.first_id DESC LIMIT 1
                ) AS block
                JOIN partitions t ON t.partition_id = r.partition_id
                WHERE r.producer_id < block.first_id + block.count AND (
                    v_now - block.allocated_ms > p_producer_id_expiration_ms
                    OR block.allocated_ms <= t.predecessor_deleted_ms
                )
            )) THEN
                v_verdict := 45;
            END IF;
        ELSIF r.producer_epoch < v_state_epoch THEN
            v_verdict := 47;
        ELSIF r.producer_epoch > v_state_epoch THEN
            IF r.first_sequence <> 0 THEN
                v_verdict := 45;
            END IF;
        ELSIF r.first_sequence <> (v_last[cardinality(v_last)]::bigint + 1) % 2147483648 THEN
            v_verdict := 45;
        END IF;
        IF v_verdict <> 0 THEN
            v_error[r.ord] := v_verdict;
        ELSE
            IF r.producer_epoch = v_state_epoch THEN
                v_first := v_first[cardinality(v_first) - 3 :] || r.first_sequence;
                v_last := v_last[cardinality(v_last) - 3 :] || r.last_sequence;
                v_bases := v_bases[cardinality(v_bases) - 3 :] || -r.ord::bigint;
                v_times := v_times[cardinality(v_times) - 3 :] || r.append_time;
            ELSE
                v_state_epoch := r.producer_epoch;
                v_first := ARRAY[r.first_sequence];
                v_last := ARRAY[r.last_sequence];
                v_bases := ARRAY[-r.ord::bigint];
                v_times := ARRAY[r.append_time];
            END IF;
        END IF;
    END LOOP;

    -- 5. Give offsets to what is stored.
    SELECT coalesce(array_agg(
        CASE WHEN a.stored THEN a.next_offset + a.upto - a.records ELSE -1 END ORDER BY a.ord
    ), '{}') INTO v_base
    FROM (
        SELECT b.ord, b.records, b.next_offset, b.error = 0 AND b.original = 0 AS stored,
            sum(b.records) FILTER (WHERE b.error = 0 AND b.original = 0)
                OVER (PARTITION BY b.partition_id ORDER BY b.ord) AS upto
        FROM unnest(p_partition, p_records, v_error, v_original, v_next)
            WITH ORDINALITY AS b(partition_id, records, error, original, next_offset, ord)
    ) AS a;

    UPDATE watermarks w SET next_offset = w.next_offset + a.records
    FROM (
        SELECT b.partition_id, sum(b.records) AS records
        FROM unnest(p_partition, p_records, v_base) AS b(partition_id, records, base)
        WHERE b.base >= 0 GROUP BY b.partition_id
    ) AS a
    WHERE w.partition_id = a.partition_id;

    -- 6. Remember: the producers' last batches, the answer, the index, the writer's seq.
    IF v_idempotent THEN
        WITH gone_on AS (
            SELECT a.partition_id, a.producer_id, a.epoch,
                (array_agg(((a.sequence::bigint + a.records) % 2147483648)::integer ORDER BY a.ord DESC))[1]
                    AS next_sequence,
                string_agg(int8send(a.base) || int4send(a.sequence) || int4send(a.records), ''::bytea ORDER BY a.ord)
                    AS tail,
                CASE WHEN bool_or(a.append_time <> -1)
                    THEN string_agg(int8send(a.append_time), ''::bytea ORDER BY a.ord) END AS append_times
            FROM (
                SELECT b.*, max(b.epoch) OVER who AS last_epoch,
                    row_number() OVER (PARTITION BY b.partition_id, b.producer_id ORDER BY b.ord DESC) AS from_end
                FROM unnest(p_partition, p_producer, p_producer_epoch, p_sequence, p_records, p_append_time, v_base)
                    WITH ORDINALITY AS b(partition_id, producer_id, epoch, sequence, records, append_time, base, ord)
                WHERE b.base >= 0 AND b.producer_id >= 0
                WINDOW who AS (PARTITION BY b.partition_id, b.producer_id)
            ) AS a
            WHERE a.epoch = a.last_epoch AND a.from_end <= 5
            GROUP BY a.partition_id, a.producer_id, a.epoch
        ), moved AS (
            UPDATE producer_states p SET
                epoch = g.epoch,
                next_sequence = g.next_sequence,
                last_seen_ms = v_now,
                tail = CASE WHEN p.epoch < g.epoch THEN g.tail ELSE
                    substr(p.tail || g.tail, greatest(octet_length(p.tail) + octet_length(g.tail) - 79, 1)) END,
                append_times = CASE WHEN p.epoch < g.epoch THEN g.append_times ELSE
                    append_times_of(p.append_times, p.tail, g.append_times, g.tail) END
            FROM gone_on g WHERE p.partition_id = g.partition_id AND p.producer_id = g.producer_id
            RETURNING p.partition_id, p.producer_id
        )
        INSERT INTO producer_states (partition_id, producer_id, epoch, next_sequence, last_seen_ms, tail, append_times)
        SELECT g.partition_id, g.producer_id, g.epoch, g.next_sequence, v_now, g.tail, g.append_times FROM gone_on g
        WHERE NOT EXISTS (
            SELECT FROM moved m WHERE m.partition_id = g.partition_id AND m.producer_id = g.producer_id);
    END IF;

    WITH begun AS (
        UPDATE transaction_partitions t SET first_offset = b.base
        FROM (
            SELECT c.partition_id, c.producer_id, min(c.base) AS base
            FROM unnest(p_partition, p_producer, p_txn_seq, v_base) AS c(partition_id, producer_id, txn_seq, base)
            WHERE c.txn_seq <> -1 AND c.base >= 0 GROUP BY c.partition_id, c.producer_id
        ) AS b
        WHERE t.producer_id = b.producer_id AND t.partition_id = b.partition_id AND t.first_offset IS NULL
        RETURNING t.partition_id, t.producer_id, t.first_offset
    )
    SELECT '\x01'::bytea || string_agg('\x00'::bytea || int4send(b.partition_id) || int8send(b.producer_id)
        || int8send(b.first_offset) || int8send(b.first_offset), ''::bytea ORDER BY b.partition_id, b.first_offset)
    INTO v_txn FROM begun b;

    --    19 bytes a batch: error i16, duplicate u8, base offset i64, log append time i64.
    SELECT coalesce(string_agg(
        int2send(b.error::smallint)
        || CASE WHEN b.original <> 0 THEN '\x01'::bytea ELSE '\x00'::bytea END
        || int8send(CASE WHEN b.original < 0 THEN v_base[(-b.original)::integer]
                         WHEN b.original > 0 THEN b.original - 1 ELSE b.base END)
        || int8send(CASE WHEN b.error <> 0 THEN -1 WHEN b.original <> 0 THEN b.original_time ELSE b.append_time END),
        ''::bytea ORDER BY b.ord
    ), ''::bytea) INTO v_results
    FROM unnest(v_error, v_original, v_original_time, v_base, p_append_time)
        WITH ORDINALITY AS b(error, original, original_time, base, append_time, ord);

    --    44 bytes a stretch of stored batches whose bytes touch: there, position less the bytes before is constant.
    SELECT '\x01'::bytea || coalesce(string_agg(
            int4send(a.partition_id) || int8send(a.base) || int8send(a.last) || int4send(a.position)
            || int4send(a.length::integer) || int8send(a.min_ts) || int8send(a.max_ts),
            ''::bytea ORDER BY a.ord
        ), ''::bytea), count(*), max(a.max_ts)
    INTO v_index, v_stretches, v_max_ts
    FROM (
        SELECT b.partition_id, min(b.base) AS base, max(b.base + b.records - 1) AS last, min(b.position) AS position,
            sum(b.length) AS length, min(b.min_ts) AS min_ts, max(b.max_ts) AS max_ts, min(b.ord) AS ord
        FROM (
            SELECT c.*, c.position + c.length - sum(c.length) OVER (PARTITION BY c.partition_id ORDER BY c.ord)
                    AS gap
            FROM unnest(p_partition, p_position, p_length, p_records, p_min_ts, p_max_ts, v_base) WITH ORDINALITY
                AS c(partition_id, position, length, records, min_ts, max_ts, base, ord)
            WHERE c.base >= 0
        ) AS b
        GROUP BY b.partition_id, b.gap
    ) AS a;

    UPDATE files f SET results = v_results, index = v_index, txn = v_txn, live_extents = v_stretches, max_ts_ms = v_max_ts,
        state = CASE WHEN v_stretches = 0 THEN 'dead' ELSE 'live' END,
        dead_ms = CASE WHEN v_stretches = 0 THEN v_now END
    WHERE f.file_id = v_file_id;
    UPDATE writers w SET last_seq = p_seq WHERE w.writer_id = p_writer_id;
    RETURN QUERY SELECT v_file_id, v_results, v_index, v_txn, v_now, false;
END
$$;
