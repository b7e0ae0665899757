-- What the first use of users, ACLs and quotas does to programs that know nothing of them
-- (metadata/postgres/security/older.py). Agents do it, and their role can write neither the jobs of compactors nor the
-- table of versions (`siltstone migrate --agent ROLE`): so these run with the rights of the schema's owner. They end
-- nobody who is at work, and nobody may call them but who was granted it.

-- Until the end of the transaction no lapsed lease of such a program is renewed.
CREATE FUNCTION lock_older_programs_v1() RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $$
BEGIN
    PERFORM FROM agents WHERE coalesce(program_schema, 1) < 7 FOR UPDATE;
    PERFORM FROM compactors WHERE coalesce(program_schema, 1) < 7 FOR UPDATE;
END $$;

-- Takes the lapsed leases away, as a migration does that excludes programs (metadata/postgres/log/registering.py), and
-- says that the schema takes no such program any more. False if there is no row that could say it.
CREATE FUNCTION end_older_programs_v1() RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $$
BEGIN
    IF EXISTS (SELECT FROM agents WHERE coalesce(program_schema, 1) < 7 AND lease_until_ms > clock_ms())
        OR EXISTS (SELECT FROM compactors WHERE coalesce(program_schema, 1) < 7 AND lease_until_ms > clock_ms()) THEN
        RAISE EXCEPTION 'programs of an older schema are at work';
    END IF;
    -- A new epoch for each group, and the next one for the writer: their former owner can write no more.
    UPDATE groups SET epoch = nextval('group_epochs') WHERE owner_id IN (
        SELECT writer_id FROM agents WHERE coalesce(program_schema, 1) < 7);
    WITH gone AS (DELETE FROM agents WHERE coalesce(program_schema, 1) < 7 RETURNING writer_id)
    UPDATE writers SET epoch = epoch + 1, last_seq = -1 WHERE writer_id IN (SELECT writer_id FROM gone);
    WITH gone AS (DELETE FROM compactors WHERE coalesce(program_schema, 1) < 7 RETURNING node_id)
    UPDATE merge_jobs SET state = 'ready', attempts = greatest(attempts - 1, 0), deadline_ms = NULL,
        lease_until_ms = NULL
    WHERE state = 'running' AND holder IN (SELECT node_id FROM gone);
    UPDATE schema_versions SET oldest_program = 7 WHERE version = 7;
    RETURN FOUND;
END $$;

REVOKE ALL ON FUNCTION lock_older_programs_v1(), end_older_programs_v1() FROM PUBLIC;

-- A caller's temporary tables and its search path must not stand in for ours.
DO $$
DECLARE
    v_function text;
BEGIN
    FOREACH v_function IN ARRAY ARRAY['lock_older_programs_v1()', 'end_older_programs_v1()']
    LOOP
        EXECUTE format('ALTER FUNCTION %s SET search_path = pg_catalog, %I, pg_temp', v_function, current_schema());
    END LOOP;
END $$;
