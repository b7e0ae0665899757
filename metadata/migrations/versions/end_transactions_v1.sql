-- Ends transactions: one file of markers, which is no object; their state; the offsets of their groups. All in one call,
-- at one instant, so there is no second phase that could get stuck. Idempotent by key.
--
-- VOLATILE at READ COMMITTED, for the reasons in `commit_l0_v5.sql`. Locks: the writer's row; the rows of `transactions`
-- by producer id; groups by id; watermarks by partition id; the lock of all offsets, shared. No partition enters a
-- transaction without the lock of its row, so the set of partitions stands still from the second lock on. Whether one has
-- records is read under its watermark, because a commit locks that alone.
--
-- `metadata/transactions/rules.py` judges in the same way for the memory store.
--
-- Errors: SL001 writer fenced, SL002 seq not above the last, SL003 key aborted, SL004 key too old; 55P03 a row was locked
-- for longer than `p_lock_timeout_ms` (NULL: it waits). All of them, and every crash, leave nothing behind.
CREATE FUNCTION end_transactions_v1(
    p_writer_id integer, p_epoch integer, p_seq bigint, p_key text, p_crc32c bigint, p_timestamp_ms bigint,
    p_lock_timeout_ms integer,
    -- Per end, of different ids. p_coordinator_epoch NULL: the caller holds no lease. p_version: the client's protocol, 1
    -- or 2; 0: abort and fence; then p_txn_seq (NULL: any) and p_overdue_ms (NULL: at once) say which transaction.
    p_id bytea[], p_coordinator_epoch integer[], p_producer bigint[], p_producer_epoch integer[], p_commit boolean[],
    p_version integer[], p_txn_seq bigint[], p_overdue_ms bigint[], p_new_producer bigint[],
    p_markers bytea  -- 78 bytes an end
) RETURNS TABLE (file_id bigint, results bytea, index bytea, inline bytea, txn bytea, created_ms bigint)
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
    v_txn bytea;
    -- Per end:
    v_verdict integer[];       -- an error; 0: it ends now; -1: it has ended so already
    v_producers bigint[];      -- the producers whose transactions end now
    v_committing bigint[];     -- of them those that commit
    v_groups bytea[];          -- whose offsets they hold back
    -- Per marker, by partition and end:
    v_partition integer[];
    v_end integer[];
    v_first bigint[];
    v_at bigint[];
BEGIN
    IF p_lock_timeout_ms IS NOT NULL THEN
        PERFORM set_config('lock_timeout', p_lock_timeout_ms::text, true);
    END IF;

    -- 1. The writer; then a known key, whose commit held that lock until it was safe.
    SELECT w.epoch, w.last_seq INTO v_epoch, v_last_seq
    FROM writers w WHERE w.writer_id = p_writer_id FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'writer % does not exist', p_writer_id USING ERRCODE = 'SL001';
    END IF;
    SELECT f.file_id, f.state, f.writer_id, f.results, f.index, f.inline, f.txn, f.created_ms INTO v_file
    FROM files f WHERE f.key = p_key;
    IF FOUND THEN
        IF v_file.state = 'aborted' OR v_file.writer_id IS NULL THEN
            RAISE EXCEPTION 'key % was aborted', p_key USING ERRCODE = 'SL003';
        END IF;
        RETURN QUERY SELECT v_file.file_id, v_file.results, v_file.index, v_file.inline, v_file.txn, v_file.created_ms;
        RETURN;
    END IF;
    IF v_epoch <> p_epoch THEN
        RAISE EXCEPTION 'writer % is at epoch %, not %', p_writer_id, v_epoch, p_epoch USING ERRCODE = 'SL001';
    END IF;
    IF p_seq <= v_last_seq THEN
        RAISE EXCEPTION 'seq % of writer % is not above its last, %', p_seq, p_writer_id, v_last_seq
        USING ERRCODE = 'SL002';
    END IF;

    -- 2. The transactions. The clock after their locks, so that a deadline is judged by the present.
    PERFORM t.producer_id FROM transactions t
    WHERE t.transactional_id = ANY (p_id) ORDER BY t.producer_id FOR NO KEY UPDATE;
    v_now := clock_ms();
    SELECT array_agg(j.verdict ORDER BY j.ord),
        coalesce(array_agg(j.producer_id ORDER BY j.ord) FILTER (WHERE j.verdict = 0), '{}'),
        coalesce(array_agg(j.producer_id ORDER BY j.ord) FILTER (WHERE j.verdict = 0 AND j.commits), '{}')
    INTO v_verdict, v_producers, v_committing
    FROM (
        SELECT e.ord, e.producer_id, e.commits, CASE
            WHEN t.producer_id IS NULL THEN 49
            WHEN e.coordinator_epoch <> t.coordinator_epoch THEN 16
            WHEN e.version = 0 THEN CASE
                WHEN t.state = 1 AND s.is_present AND (e.txn_seq = t.txn_seq) IS NOT FALSE
                    AND (t.deadline_ms + e.overdue_ms <= v_now) IS NOT FALSE THEN 0
                ELSE 48 END
            WHEN e.version = 1 THEN CASE
                WHEN t.producer_id <> e.producer_id THEN 49
                WHEN NOT s.is_present THEN 90
                WHEN t.state = 1 THEN 0
                WHEN s.is_done THEN -1
                ELSE 48 END
            WHEN t.producer_id <> e.producer_id AND NOT s.is_repeat THEN 49
            WHEN s.is_present THEN CASE WHEN e.commits AND t.state <> 1 THEN 48 ELSE 0 END
            -- Only a marker has epoch 32767.
            WHEN t.state IN (0, 1) OR NOT s.is_repeat OR t.producer_epoch > 32766 THEN 90
            WHEN s.is_done THEN -1
            ELSE 48 END AS verdict
        FROM unnest(
            p_id, p_coordinator_epoch, p_producer, p_producer_epoch, p_commit, p_version, p_txn_seq, p_overdue_ms
        ) WITH ORDINALITY AS e(
            id, coordinator_epoch, producer_id, producer_epoch, commits, version, txn_seq, overdue_ms, ord
        )
        LEFT JOIN transactions t ON t.transactional_id = e.id
        CROSS JOIN LATERAL (
            SELECT t.producer_id = e.producer_id AND t.producer_epoch = e.producer_epoch AS is_present,
                t.state = CASE WHEN e.commits THEN 4 ELSE 5 END AS is_done,
                -- An end changes the epoch, so the epoch tells a repeated end from the end of the next transaction.
                (t.producer_id = e.producer_id AND t.producer_epoch = e.producer_epoch + 1)
                    OR (t.prev_producer_id = e.producer_id AND e.producer_epoch = 32766 AND t.producer_epoch = 0)
                    AS is_repeat
        ) AS s
    ) AS j;

    -- 3. Groups, then watermarks.
    IF cardinality(v_committing) > 0 THEN
        SELECT array_agg(DISTINCT o.group_id) INTO v_groups
        FROM transaction_offsets o WHERE o.producer_id = ANY (v_committing);
        IF v_groups IS NOT NULL THEN
            PERFORM g.group_id FROM groups g WHERE g.group_id = ANY (v_groups) ORDER BY g.group_id FOR NO KEY UPDATE;
        END IF;
    END IF;
    IF cardinality(v_producers) > 0 THEN
        PERFORM w.partition_id FROM watermarks w
        WHERE w.partition_id = ANY (ARRAY(
            SELECT t.partition_id FROM transaction_partitions t WHERE t.producer_id = ANY (v_producers)
        )) ORDER BY w.partition_id FOR NO KEY UPDATE;
        --    A marker on each partition with records. All of one transaction are the same bytes of the file.
        SELECT array_agg(m.partition_id ORDER BY m.partition_id, m.ord),
            array_agg(m.ord ORDER BY m.partition_id, m.ord), array_agg(m.first_offset ORDER BY m.partition_id, m.ord),
            array_agg(m.at ORDER BY m.partition_id, m.ord),
            string_agg(int4send(m.partition_id) || int8send(m.at) || int8send(m.at) || int4send(78 * (m.ord - 1))
                || int4send(78) || int8send(p_timestamp_ms) || int8send(p_timestamp_ms), ''::bytea
                ORDER BY m.partition_id, m.ord),
            '\x01'::bytea || string_agg(CASE WHEN m.commits THEN '\x01'::bytea ELSE '\x02'::bytea END
                || int4send(m.partition_id) || int8send(m.producer_id) || int8send(m.first_offset) || int8send(m.at),
                ''::bytea ORDER BY m.partition_id, m.ord)
        INTO v_partition, v_end, v_first, v_at, v_index, v_txn
        FROM (
            SELECT t.partition_id, e.ord::integer AS ord, e.commits, t.producer_id, t.first_offset,
                w.next_offset + row_number() OVER (PARTITION BY t.partition_id ORDER BY e.ord) - 1 AS at
            FROM unnest(p_producer, p_commit, v_verdict) WITH ORDINALITY AS e(producer_id, commits, verdict, ord)
            JOIN transaction_partitions t ON t.producer_id = e.producer_id
            JOIN watermarks w ON w.partition_id = t.partition_id
            WHERE e.verdict = 0 AND t.first_offset IS NOT NULL
        ) AS m;
        UPDATE watermarks w SET next_offset = w.next_offset + m.markers
        FROM (SELECT p.partition_id, count(*) AS markers FROM unnest(v_partition) AS p(partition_id) GROUP BY 1) AS m
        WHERE w.partition_id = m.partition_id;
        DELETE FROM transaction_partitions t WHERE t.producer_id = ANY (v_producers);
        INSERT INTO aborted_transactions (partition_id, last_offset, producer_id, first_offset, stable_offset)
        SELECT m.partition_id, m.at, m.producer_id, m.first_offset,
            least(m.at + 1, m.first_later, (
                SELECT min(t.first_offset) FROM transaction_partitions t
                WHERE t.partition_id = m.partition_id AND t.first_offset IS NOT NULL
            ))
        FROM (
            SELECT n.*, p_producer[n.ord] AS producer_id, min(n.first_offset) OVER (
                PARTITION BY n.partition_id ORDER BY n.ord ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING
            ) AS first_later
            FROM unnest(v_partition, v_end, v_first, v_at) AS n(partition_id, ord, first_offset, at)
        ) AS m
        WHERE NOT p_commit[m.ord];

        -- 4. Offsets of groups: a plain commit that came later stays.
        IF v_groups IS NOT NULL THEN
            PERFORM pg_advisory_xact_lock_shared(7310575220);
            INSERT INTO group_offsets (
                group_id, topic_id, partition, committed_offset, leader_epoch, metadata, committed_ms
            )
            SELECT DISTINCT ON (o.group_id, o.topic_id, o.partition)
                o.group_id, o.topic_id, o.partition, o.committed_offset, o.leader_epoch, o.metadata, o.written_ms
            FROM unnest(v_committing) WITH ORDINALITY AS e(producer_id, ord)
            JOIN transaction_offsets o ON o.producer_id = e.producer_id
            JOIN groups g ON g.group_id = o.group_id
            JOIN partitions p ON p.topic_id = o.topic_id AND p.partition = o.partition
            ORDER BY o.group_id, o.topic_id, o.partition, o.written_ms DESC, e.ord DESC
            ON CONFLICT (group_id, topic_id, partition) DO UPDATE SET committed_offset = excluded.committed_offset,
                leader_epoch = excluded.leader_epoch, metadata = excluded.metadata, committed_ms = excluded.committed_ms
            WHERE group_offsets.committed_ms < excluded.committed_ms;
        END IF;
        DELETE FROM transaction_offsets o WHERE o.producer_id = ANY (v_producers);

        -- 5. Their state. An end by the second protocol, and every abort by somebody else, gives the next epoch.
        UPDATE transactions t SET
            state = CASE WHEN e.commits THEN 4 ELSE 5 END,
            started_ms = NULL, deadline_ms = NULL, updated_ms = v_now,
            producer_id = CASE WHEN e.is_used_up THEN e.new_producer_id ELSE t.producer_id END,
            prev_producer_id = CASE WHEN e.is_used_up THEN t.producer_id ELSE t.prev_producer_id END,
            producer_epoch = CASE WHEN e.is_used_up THEN 0 WHEN e.version = 1 THEN t.producer_epoch
                ELSE t.producer_epoch + 1 END,
            last_producer_epoch = CASE WHEN e.version = 0 THEN -1 WHEN e.version = 1 THEN t.last_producer_epoch
                ELSE t.producer_epoch END
        FROM (
            SELECT u.id, u.commits, u.version, u.new_producer_id,
                u.version = 2 AND u.producer_epoch >= 32766 AS is_used_up
            FROM unnest(p_id, p_commit, p_version, p_new_producer, p_producer_epoch, v_verdict)
                AS u(id, commits, version, new_producer_id, producer_epoch, verdict)
            WHERE u.verdict = 0
        ) AS e
        WHERE t.transactional_id = e.id;
    END IF;

    --    12 bytes an end: error i16, producer id i64, producer epoch i16.
    SELECT string_agg(CASE WHEN e.verdict > 0 THEN int2send(e.verdict::smallint) || '\xffffffffffffffffffff'::bytea
        ELSE int2send(0::smallint) || int8send(t.producer_id) || int2send(t.producer_epoch) END, ''::bytea
        ORDER BY e.ord)
    INTO v_results
    FROM unnest(p_id, v_verdict) WITH ORDINALITY AS e(id, verdict, ord)
    LEFT JOIN transactions t ON t.transactional_id = e.id;

    -- 6. The id after the locks, as in `commit_l0_v4.sql`.
    v_file_id := nextval('file_ids');
    v_index := '\x01'::bytea || coalesce(v_index, ''::bytea);
    INSERT INTO files (
        file_id, key, level, state, writer_id, epoch, seq, lo, hi, size_bytes, crc32c, created_ms, dead_ms,
        live_extents, max_ts_ms, results, index, inline, txn
    ) VALUES (
        v_file_id, p_key, 0, CASE WHEN v_partition IS NULL THEN 'dead' ELSE 'live' END, p_writer_id, p_epoch, p_seq,
        v_file_id, v_file_id, octet_length(p_markers), p_crc32c, v_now,
        CASE WHEN v_partition IS NULL THEN v_now END, coalesce(cardinality(v_partition), 0),
        CASE WHEN v_partition IS NULL THEN NULL ELSE p_timestamp_ms END, v_results, v_index, p_markers, v_txn
    ) ON CONFLICT ON CONSTRAINT files_key DO NOTHING;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'key % was aborted', p_key USING ERRCODE = 'SL003';
    END IF;
    --    After the INSERT: it may have waited for a janitor that forgot the row of an aborted key and raised this mark.
    IF (regexp_match(p_key, '/([0-9]{10})/'))[1]::bigint <= (SELECT c.forgotten_key_hour FROM cluster c) THEN
        RAISE EXCEPTION 'key % is as old as rows that were forgotten: the clock by which it was made is behind', p_key
        USING ERRCODE = 'SL004';
    END IF;
    UPDATE writers w SET last_seq = p_seq WHERE w.writer_id = p_writer_id;
    RETURN QUERY SELECT v_file_id, v_results, v_index, p_markers, v_txn, v_now;
END
$$;
