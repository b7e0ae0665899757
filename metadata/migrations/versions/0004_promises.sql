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

-- ---- erasures ----------------------------------------------------------------------------------------------------

-- Every erasure of the partition up to this id was carried out on the extent. Always 0 until there are erasures.
ALTER TABLE extents ADD COLUMN erased_through bigint NOT NULL DEFAULT 0;
