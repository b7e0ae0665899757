-- Migration 0006, part log.
CREATE TABLE commit_gate (
);
