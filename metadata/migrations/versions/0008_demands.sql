-- Adds only: programs of older schemas never see what is new here.

-- What clients ask of each agent, of the quotas that agents share: each replaces its row with every beat. Beside the
-- lease and not in it, so that no report that hangs costs an agent its lease. Agents alone read it, and nothing of it is
-- backed up. Unlogged: after a crash of Postgres each agent reports again within a beat.
CREATE UNLOGGED TABLE quota_demands (
    writer_id integer PRIMARY KEY,
    epoch integer NOT NULL,  -- of the lease under which it was reported: it counts for that one alone
    until_ms bigint NOT NULL,  -- it counts until then
    demands bytea NOT NULL  -- metadata/security/demands.py; numbers stand for clients
) WITH (fillfactor = 50);

-- Until when a process may act that was at this address before and gave no lease back. It was taken for dead; it may only
-- be cut off from this database, and goes by the users and ACLs that it knew until its lease has ended.
ALTER TABLE agents ADD COLUMN former_until_ms bigint NOT NULL DEFAULT 0;
