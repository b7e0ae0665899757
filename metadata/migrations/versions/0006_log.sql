-- Migration 0006, part log: the state of producers in packed rows, and the gate of commits.

-- Commits that wait for each other lock this table before they take a snapshot (`metadata/postgres/log/commit.py`). It
-- has no rows and is never read; nothing is safe because of it.
CREATE TABLE commit_gate (
);

-- While an old snapshot is held, no version of a row can go. Three things keep commits quick all the same:
-- - With room beside each row, new versions stay on its page for longer (HOT). So the index grows a fifth as fast. Such a
--   table of 10,000 partitions has 8 MiB.
-- - The index is not unique: a unique one looks at every version of the row before it takes another entry. Nothing else
--   makes ids twice: a topic is created once, with ids from a sequence.
-- - Each version has an entry of its own. Entries with many versions (deduplicated ones) are read in ascending order even
--   by a backward scan, and the newest version is the last.
-- The identity is for publications: without one they would refuse the updates of a table that has no key.
ALTER TABLE watermarks SET (fillfactor = 10);
ALTER TABLE watermarks DROP CONSTRAINT watermarks_pkey;
CREATE INDEX watermarks_partition ON watermarks (partition_id) WITH (deduplicate_items = off);
ALTER TABLE watermarks REPLICA IDENTITY FULL;

-- The last 5 batches of each producer. An update writes the changed bytes of the row to the WAL, so the row is small.
CREATE TABLE producer_states (
    partition_id integer NOT NULL,
    producer_id bigint NOT NULL CHECK (producer_id >= 0),
    epoch smallint NOT NULL CHECK (epoch >= 0),  -- of all these batches: a newer epoch forgets those before it
    next_sequence integer NOT NULL CHECK (next_sequence >= 0),
    last_seen_ms bigint NOT NULL,
    -- Per batch, oldest first, 16 bytes big-endian: base offset i64, first sequence i32, records i32.
    tail bytea NOT NULL,
    append_times bytea,  -- per batch of `tail`: i64; NULL: -1 (CreateTime) for all of them
    CONSTRAINT producer_states_tail CHECK (octet_length(tail) BETWEEN 16 AND 80 AND octet_length(tail) % 16 = 0),
    CONSTRAINT producer_states_append_times CHECK (octet_length(append_times) = octet_length(tail) / 2)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

CREATE FUNCTION int8_at(p_bytes bytea, p_at integer) RETURNS bigint LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    RETURN ('x' || encode(substr(p_bytes, p_at + 1, 8), 'hex'))::bit(64)::bigint;
CREATE FUNCTION int4_at(p_bytes bytea, p_at integer) RETURNS integer LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    RETURN ('x' || encode(substr(p_bytes, p_at + 1, 4), 'hex'))::bit(32)::integer;

-- The append times of the last 5 of the batches of two tails, of which the second follows the first.
CREATE FUNCTION append_times_of(p_times bytea, p_tail bytea, p_more_times bytea, p_more_tail bytea) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    v_none CONSTANT bytea := decode(repeat('ff', 40), 'hex');  -- -1 for each of 5 batches
    v_all bytea;
BEGIN
    IF p_times IS NULL AND p_more_times IS NULL THEN
        RETURN NULL;
    END IF;
    v_all := coalesce(p_times, substr(v_none, 1, octet_length(p_tail) / 2))
        || coalesce(p_more_times, substr(v_none, 1, octet_length(p_more_tail) / 2));
    RETURN substr(v_all, greatest(octet_length(v_all) - 39, 1));
END
$$;

-- The bytes of one batch in a tail; none for a batch that the arrays do not have.
CREATE FUNCTION tail_of_batch(p_base bigint, p_first integer, p_last integer) RETURNS bytea LANGUAGE sql IMMUTABLE
    RETURN coalesce(int8send(p_base) || int4send(p_first)
        || int4send(((p_last::bigint - p_first + 2147483648) % 2147483648 + 1)::integer), '');

-- Takes the table away from the commits of older programs for as long as it is copied; they wait. One that had begun
-- before fails with 0A000 at the view below, which to its program is a commit in doubt, and is repeated. Written for speed: the
-- five batches one by one, and the key at the end.
LOCK TABLE producers IN ACCESS EXCLUSIVE MODE;
INSERT INTO producer_states (partition_id, producer_id, epoch, next_sequence, last_seen_ms, tail, append_times)
SELECT p.partition_id, p.producer_id, p.epoch,
    ((p.last_sequences[cardinality(p.last_sequences)]::bigint + 1) % 2147483648)::integer, p.last_seen_ms,
    tail_of_batch(p.base_offsets[1], p.first_sequences[1], p.last_sequences[1])
        || tail_of_batch(p.base_offsets[2], p.first_sequences[2], p.last_sequences[2])
        || tail_of_batch(p.base_offsets[3], p.first_sequences[3], p.last_sequences[3])
        || tail_of_batch(p.base_offsets[4], p.first_sequences[4], p.last_sequences[4])
        || tail_of_batch(p.base_offsets[5], p.first_sequences[5], p.last_sequences[5]),
    CASE WHEN -1 <> ANY (p.log_append_times_ms) THEN
        (SELECT string_agg(int8send(t.ms), ''::bytea ORDER BY t.ord)
        FROM unnest(p.log_append_times_ms) WITH ORDINALITY AS t(ms, ord)) END
FROM producers p WHERE cardinality(p.last_sequences) > 0;
-- As that of `watermarks`. Only the holder of the partition's lock adds rows.
CREATE INDEX producer_states_producer ON producer_states (partition_id, producer_id) WITH (deduplicate_items = off);
ALTER TABLE producer_states REPLICA IDENTITY FULL;
DROP TABLE producers;
DROP FUNCTION tail_of_batch;

-- Older programs read and delete producers by this name.
CREATE VIEW producers AS
SELECT s.partition_id, s.producer_id, s.epoch,
    ARRAY(SELECT int4_at(s.tail, 16 * i + 8) FROM generate_series(0, octet_length(s.tail) / 16 - 1) AS i ORDER BY i)
        AS first_sequences,
    ARRAY(SELECT ((int4_at(s.tail, 16 * i + 8)::bigint + int4_at(s.tail, 16 * i + 12) - 1) % 2147483648)::integer
        FROM generate_series(0, octet_length(s.tail) / 16 - 1) AS i ORDER BY i) AS last_sequences,
    ARRAY(SELECT int8_at(s.tail, 16 * i) FROM generate_series(0, octet_length(s.tail) / 16 - 1) AS i ORDER BY i)
        AS base_offsets,
    ARRAY(SELECT coalesce(int8_at(s.append_times, 8 * i), -1)
        FROM generate_series(0, octet_length(s.tail) / 16 - 1) AS i ORDER BY i) AS log_append_times_ms,
    s.last_seen_ms
FROM producer_states s;
