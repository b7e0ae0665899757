-- How a commit must not be written: everything in one statement, so that `producers` is read from a snapshot taken
-- before the lock on the watermark was granted. Kept to show that test_commit_race.py can fail.
-- $1 partition, $2 producer id, $3 first sequence, $4 records; answers (base_offset, duplicate).
WITH locked AS MATERIALIZED (
    SELECT w.partition_id FROM watermarks w WHERE w.partition_id = $1::integer FOR NO KEY UPDATE
), judged AS MATERIALIZED (
    SELECT l.partition_id, p.base_offsets[1] AS original
    FROM locked l
    LEFT JOIN producers p ON p.partition_id = l.partition_id AND p.producer_id = $2::bigint
        AND p.first_sequences[1] = $3::integer AND p.last_sequences[1] = $3::integer + $4::integer - 1
), moved AS (
    UPDATE watermarks w SET next_offset = w.next_offset + $4::integer
    FROM judged j WHERE w.partition_id = j.partition_id AND j.original IS NULL
    RETURNING w.partition_id, w.next_offset - $4::integer AS base_offset
), remembered AS (
    INSERT INTO producer_states (partition_id, producer_id, epoch, next_sequence, tail, last_seen_ms)
    SELECT m.partition_id, $2::bigint, 0, $3::integer + $4::integer,
        int8send(m.base_offset) || int4send($3::integer) || int4send($4::integer), clock_ms()
    FROM moved m
)
SELECT m.base_offset, false AS duplicate FROM moved m
UNION ALL
SELECT j.original, true FROM judged j WHERE j.original IS NOT NULL
