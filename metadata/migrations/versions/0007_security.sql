-- Adds only: programs of older schemas never see what is new here.

-- What is kept of passwords. Agents alone read this table: no reader's role, no metadata backup and no row of `changes`
-- shows anything of it but names. A name is what a client chose, of any length: the hash keeps the key small.
CREATE TABLE scram_users (
    name_hash bytea NOT NULL CHECK (name_hash = sha256(name)),
    name bytea NOT NULL,
    mechanism smallint NOT NULL CHECK (mechanism IN (1, 2)),  -- KIP-554: SCRAM-SHA-256, SCRAM-SHA-512
    salt bytea NOT NULL,
    iterations integer NOT NULL CHECK (iterations > 0),
    stored_key bytea NOT NULL,
    server_key bytea NOT NULL,
    PRIMARY KEY (name_hash, mechanism)
);

CREATE TABLE acls (
    acl_id bytea PRIMARY KEY CHECK (octet_length(acl_id) = 32),  -- a hash of all seven: metadata/security/details.py
    resource_type smallint NOT NULL,
    pattern_type smallint NOT NULL,
    resource_name bytea NOT NULL,
    principal bytea NOT NULL,
    host bytea NOT NULL,
    operation smallint NOT NULL,
    permission smallint NOT NULL
);

CREATE TABLE client_quotas (
    quota_id bytea PRIMARY KEY CHECK (octet_length(quota_id) = 32),  -- a hash of all but the value
    user_name bytea,  -- NULL in these three: this kind plays no part, or the quota is for its default
    client_id bytea,
    ip bytea,
    defaults smallint NOT NULL CHECK (defaults BETWEEN 0 AND 7),  -- 1: user, 2: client id, 4: ip
    key text NOT NULL,
    value double precision NOT NULL
);

-- Agents alone read this table too, and nothing of it is backed up. `cluster`: 32 bytes, the same for all agents.
CREATE TABLE secrets (
    name text PRIMARY KEY,
    value bytea NOT NULL
);
-- Made here and not by the first agent: so agents need no right to write it, and two that start at once read the same.
-- Each id has 122 bits of Postgres's own strong randomness.
INSERT INTO secrets (name, value) VALUES ('cluster', sha256(
    uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())));

-- Per listener its name and the host and port that clients are told. An agent of an older program that takes its address
-- again leaves the column as it is, and has none of them: `program_schema` tells.
ALTER TABLE agents ADD COLUMN endpoints jsonb NOT NULL DEFAULT '[]';
-- The agent has applied all changes of users and ACLs up to this one. It belongs to the lease: a new lease begins at 0.
ALTER TABLE agents ADD COLUMN seen_change bigint NOT NULL DEFAULT 0;
