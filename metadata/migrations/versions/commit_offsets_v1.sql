-- Commit of offsets of several groups under their owners' epochs: one call, one transaction.
--
-- VOLATILE at READ COMMITTED: every statement sees what was committed before *it* began, which makes this order sound.
-- One SQL statement would compare epochs in a snapshot older than its locks, and an owner who was waiting for the new
-- one to finish would write after it.
--
-- A row of `group_offsets` is written only under the lock of its group's row, or by whoever has the lock of all offsets
-- (OFFSETS_LOCK in metadata/postgres_group_offsets.py) to himself: the deletion of a topic. So nobody else inserts or
-- deletes between two statements below, an UPDATE and an INSERT of what it did not find are enough (ON CONFLICT DO
-- UPDATE would write a lock record for every row), and rows are never waited for.
--
-- Locks, in this order: rows of `groups` by id, then the lock of all offsets, shared. The deletion of a topic takes no
-- group. FOR NO KEY UPDATE, not FOR SHARE: a group has one owner who commits one call at a time, so there is nobody to
-- share with but a fenced one, and two sharers would cost a multixact.
--
-- Repeated, it writes the same again. Callers name a place once per group and epoch.
CREATE FUNCTION commit_offsets_v1(
    p_group bytea[], p_epoch bigint[],  -- per batch
    -- Per offset; `p_batch` counts from 1. The last two may be empty: all -1, all without metadata.
    p_batch integer[], p_topic uuid[], p_partition integer[], p_offset bigint[],
    p_leader_epoch integer[], p_metadata bytea[]
) RETURNS TABLE (fenced boolean, unknown integer[])  -- per batch, in order; unknown: positions from 1 in p_batch
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_now bigint;
    v_held boolean[];     -- per batch: it carries the group's epoch
    v_written boolean[];  -- per offset: its batch is held, its partition exists; NULL: held, and there is none
    v_rows integer;
BEGIN
    -- 1. Locks. A group that is deleted and made anew while we wait is not among them, but its epoch is another then.
    PERFORM g.group_id FROM groups g WHERE g.group_id = ANY (p_group) ORDER BY g.group_id FOR NO KEY UPDATE;

    -- 2. Epochs, after the locks.
    SELECT coalesce(array_agg(g.epoch IS NOT DISTINCT FROM b.epoch ORDER BY b.ord), '{}') INTO v_held
    FROM unnest(p_group, p_epoch) WITH ORDINALITY AS b(group_id, epoch, ord)
    LEFT JOIN groups g ON g.group_id = b.group_id;

    -- 3. Partitions, after the lock that their deletion takes alone.
    PERFORM pg_advisory_xact_lock_shared(7310575220);
    SELECT coalesce(array_agg(
        CASE WHEN NOT v_held[o.batch] THEN false WHEN p.partition_id IS NOT NULL THEN true END ORDER BY o.ord
    ), '{}') INTO v_written
    FROM unnest(p_batch, p_topic, p_partition) WITH ORDINALITY AS o(batch, topic_id, partition, ord)
    LEFT JOIN partitions p ON p.topic_id = o.topic_id AND p.partition = o.partition;

    -- 4. Write.
    IF cardinality(p_leader_epoch) = 0 THEN
        p_leader_epoch := array_fill(-1, ARRAY[cardinality(p_batch)]);
    END IF;
    IF cardinality(p_metadata) = 0 THEN
        p_metadata := array_fill(''::bytea, ARRAY[cardinality(p_batch)]);
    END IF;
    v_now := clock_ms();
    UPDATE group_offsets g SET committed_offset = o.committed_offset, leader_epoch = o.leader_epoch,
        metadata = o.metadata, committed_ms = v_now
    FROM unnest(p_batch, p_topic, p_partition, p_offset, p_leader_epoch, p_metadata, v_written)
        AS o(batch, topic_id, partition, committed_offset, leader_epoch, metadata, written)
    WHERE o.written AND g.group_id = p_group[o.batch] AND g.topic_id = o.topic_id AND g.partition = o.partition;
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    IF v_rows < cardinality(array_positions(v_written, true)) THEN
        INSERT INTO group_offsets (
            group_id, topic_id, partition, committed_offset, leader_epoch, metadata, committed_ms
        )
        SELECT p_group[o.batch], o.topic_id, o.partition, o.committed_offset, o.leader_epoch, o.metadata, v_now
        FROM unnest(p_batch, p_topic, p_partition, p_offset, p_leader_epoch, p_metadata, v_written)
            AS o(batch, topic_id, partition, committed_offset, leader_epoch, metadata, written)
        WHERE o.written
        ON CONFLICT (group_id, topic_id, partition) DO NOTHING;
    END IF;

    RETURN QUERY
    SELECT NOT b.held, coalesce(u.unknown, '{}')
    FROM unnest(v_held) WITH ORDINALITY AS b(held, ord)
    LEFT JOIN (
        SELECT o.batch, array_agg(o.ord::integer) AS unknown
        FROM unnest(p_batch, v_written) WITH ORDINALITY AS o(batch, written, ord)
        WHERE o.written IS NULL GROUP BY o.batch
    ) AS u ON u.batch = b.ord
    ORDER BY b.ord;
END
$$;
