-- Migration 0006, part sweeps.
SELECT 1;
