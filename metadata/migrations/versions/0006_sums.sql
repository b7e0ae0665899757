-- Migration 0006, part sums.
CREATE INDEX merge_jobs_daily ON merge_jobs (created_ms) WHERE kind = 'daily' AND state <> 'failed';
