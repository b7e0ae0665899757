-- Adds only: programs of schema 0001 never see what is new here. Each part says who it is for.

-- ---- upgrades: metadata/schema_versions.py ----------------------------------------------------------------------

-- A row for each migration that was applied. Programs of `oldest_program` and newer may work with the schema it left;
-- the newest row counts. A database without this table has schema 1.
CREATE TABLE schema_versions (
    version integer PRIMARY KEY,
    oldest_program integer NOT NULL,
    migrated_ms bigint NOT NULL DEFAULT clock_ms(),
    CONSTRAINT schema_versions_oldest CHECK (oldest_program BETWEEN 1 AND version)
);
-- Every program asks before it works, under whatever role: one that could not would be refused by an upgrade.
GRANT SELECT ON schema_versions TO PUBLIC;
INSERT INTO schema_versions (version, oldest_program) VALUES (1, 1);

-- The schema that the program was made for. Programs of schema 1 leave it empty.
ALTER TABLE agents ADD COLUMN program_schema integer;
ALTER TABLE compactors ADD COLUMN program_schema integer;

-- ---- restores: metadata/history.py ------------------------------------------------------------------------------

-- The database that was vouched for, beside its server and timeline: a dump read into another database of the same
-- server has those, too. Who migrates vouches for the one that the cluster lies in. Empty: not known, not compared.
ALTER TABLE cluster ADD COLUMN adopted_database_oid bigint;
UPDATE cluster SET adopted_database_oid = (SELECT oid FROM pg_database WHERE datname = current_database());
