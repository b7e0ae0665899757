-- Checks the producers of the transactional batches of a file, and enters the partitions of those that add. Any agent
-- calls it for a file that it has sealed, beside the PUT; the commit of the file judges again, under its locks.
--
-- Errors per entry: 0; 49 the id has no such producer; 90 another epoch; 48 not in the transaction; 120 too many partitions.
CREATE FUNCTION enter_transactions_v1(
    -- Per entry; a producer's entries need not stand together.
    p_id bytea[], p_producer bigint[], p_epoch integer[], p_partition integer[], p_adds boolean[],
    p_partitions_max integer
) RETURNS TABLE (error integer, txn_seq bigint)
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    v_now bigint;
    v_fits bigint[];
BEGIN
    -- As a rule all have entered already, and nothing is locked.
    IF EXISTS (
        SELECT FROM unnest(p_id, p_producer, p_epoch, p_partition, p_adds) AS e(id, producer_id, epoch, partition_id, adds)
        JOIN transactions t ON t.producer_id = e.producer_id AND t.transactional_id = e.id
        LEFT JOIN transaction_partitions p ON p.producer_id = e.producer_id AND p.partition_id = e.partition_id
        WHERE e.adds AND t.producer_epoch = e.epoch AND (t.state <> 1 OR p.producer_id IS NULL)
    ) THEN
        -- The commit of the file waits for the disk, and by that for this too.
        PERFORM set_config('synchronous_commit', 'off', true);
        PERFORM t.producer_id FROM transactions t
        WHERE t.producer_id = ANY (p_producer) ORDER BY t.producer_id FOR NO KEY UPDATE;
        v_now := clock_ms();
        SELECT array_agg(w.producer_id) INTO v_fits FROM (
            SELECT e.producer_id, count(DISTINCT e.partition_id) FILTER (WHERE p.producer_id IS NULL) AS more
            FROM unnest(p_id, p_producer, p_epoch, p_partition, p_adds) AS e(id, producer_id, epoch, partition_id, adds)
            JOIN transactions t
                ON t.producer_id = e.producer_id AND t.transactional_id = e.id AND t.producer_epoch = e.epoch
            LEFT JOIN transaction_partitions p ON p.producer_id = e.producer_id AND p.partition_id = e.partition_id
            WHERE e.adds GROUP BY e.producer_id
        ) AS w
        WHERE w.more + (SELECT count(*) FROM transaction_partitions k WHERE k.producer_id = w.producer_id)
            <= p_partitions_max;
        UPDATE transactions t SET state = 1, txn_seq = t.txn_seq + 1, client_version = 2, started_ms = v_now,
            deadline_ms = v_now + t.timeout_ms, updated_ms = v_now, group_ids = '{}'
        WHERE t.producer_id = ANY (v_fits) AND t.state <> 1;
        INSERT INTO transaction_partitions (partition_id, producer_id, epoch, txn_seq)
        SELECT DISTINCT e.partition_id, e.producer_id, t.producer_epoch, t.txn_seq
        FROM unnest(p_id, p_producer, p_epoch, p_partition, p_adds) AS e(id, producer_id, epoch, partition_id, adds)
        JOIN transactions t
                ON t.producer_id = e.producer_id AND t.transactional_id = e.id AND t.producer_epoch = e.epoch
        WHERE e.adds AND e.producer_id = ANY (v_fits)
        ON CONFLICT (producer_id, partition_id) DO NOTHING;
    END IF;
    RETURN QUERY
    SELECT s.error, CASE WHEN s.error = 0 THEN s.txn_seq ELSE -1 END
    FROM (
        SELECT e.ord, t.txn_seq, CASE
            WHEN t.producer_id IS NULL THEN 49
            WHEN t.producer_epoch <> e.epoch THEN 90
            WHEN t.state = 1 AND p.producer_id IS NOT NULL THEN 0
            WHEN e.adds THEN 120
            ELSE 48 END AS error
        FROM unnest(p_id, p_producer, p_epoch, p_partition, p_adds) WITH ORDINALITY
            AS e(id, producer_id, epoch, partition_id, adds, ord)
        LEFT JOIN transactions t ON t.producer_id = e.producer_id AND t.transactional_id = e.id
        LEFT JOIN transaction_partitions p ON p.producer_id = e.producer_id AND p.partition_id = e.partition_id
    ) AS s
    ORDER BY s.ord;
END
$$;
