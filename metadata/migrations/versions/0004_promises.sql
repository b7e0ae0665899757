-- Adds only: programs of older schemas never see what is new here. Each part says who it is for.

-- ---- topics as they were asked for -------------------------------------------------------------------------------

-- The replicas that the topic's creator asked for. The object store keeps its own copies: agents only show this number.
ALTER TABLE topics ADD COLUMN replication_factor smallint NOT NULL DEFAULT 1 CHECK (replication_factor >= 1);

-- ---- the planner's clocks ----------------------------------------------------------------------------------------

-- Bytes of the extent's batches with their records uncompressed. Empty: an older program wrote the row.
ALTER TABLE extents ADD COLUMN uncompressed_bytes bigint;
-- When the first of its records was committed. Empty: an older program wrote the row.
ALTER TABLE extents ADD COLUMN committed_ms bigint;
-- The earliest delete horizon of its batches. Empty: no batch has one, or an older program wrote the row.
ALTER TABLE extents ADD COLUMN earliest_horizon_ms bigint;
-- How long the last pass over the partition took. Empty: not known.
ALTER TABLE log_starts ADD COLUMN last_pass_took_ms bigint;

-- ---- erasures: metadata/contract/erasures.py ---------------------------------------------------------------------

-- Every open erasure of the partition up to this id was carried out on the extent. An older program leaves 0, so the
-- extent is rewritten once more.
ALTER TABLE extents ADD COLUMN erased_through bigint NOT NULL DEFAULT 0;

CREATE TABLE erasures (
    erasure_id bigint PRIMARY KEY,  -- in order of commit
    topic_id uuid NOT NULL,
    topic_name text NOT NULL,
    created_ms bigint NOT NULL,
    deadline_ms bigint NOT NULL,
    before_ms bigint,  -- records older than this; empty: all records up to the request
    finished_ms bigint,  -- empty: open
    report jsonb NOT NULL DEFAULT '{}'
);

-- The keys of an erasure, by hash alone: Postgres and its backups never hold the key.
CREATE TABLE erasure_keys (
    erasure_id bigint NOT NULL,
    partition_id integer NOT NULL,
    key_hash bytea NOT NULL CHECK (length(key_hash) = 32),
    before_offset bigint NOT NULL,  -- exclusive
    tombstone_offset bigint,  -- empty: none was needed
    PRIMARY KEY (erasure_id, partition_id, key_hash)
);
