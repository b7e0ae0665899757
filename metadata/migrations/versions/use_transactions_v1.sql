-- What the first use of transactions does to programs that know nothing of them: as `excluding_v1.sql` does for users and
-- ACLs, for the schema that it is told (metadata/postgres/transactions/using.py).

CREATE FUNCTION lock_programs_below_v1(p_oldest integer) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $$
BEGIN
    PERFORM FROM agents WHERE coalesce(program_schema, 1) < p_oldest FOR UPDATE;
    PERFORM FROM compactors WHERE coalesce(program_schema, 1) < p_oldest FOR UPDATE;
END $$;

CREATE FUNCTION end_programs_below_v1(p_oldest integer) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $$
BEGIN
    IF EXISTS (SELECT FROM agents WHERE coalesce(program_schema, 1) < p_oldest AND lease_until_ms > clock_ms())
        OR EXISTS (SELECT FROM compactors WHERE coalesce(program_schema, 1) < p_oldest AND lease_until_ms > clock_ms())
    THEN
        RAISE EXCEPTION 'programs of an older schema are at work';
    END IF;
    UPDATE groups SET epoch = nextval('group_epochs') WHERE owner_id IN (
        SELECT writer_id FROM agents WHERE coalesce(program_schema, 1) < p_oldest);
    WITH gone AS (DELETE FROM agents WHERE coalesce(program_schema, 1) < p_oldest RETURNING writer_id)
    UPDATE writers SET epoch = epoch + 1, last_seq = -1 WHERE writer_id IN (SELECT writer_id FROM gone);
    WITH gone AS (DELETE FROM compactors WHERE coalesce(program_schema, 1) < p_oldest RETURNING node_id)
    UPDATE merge_jobs SET state = 'ready', attempts = greatest(attempts - 1, 0), deadline_ms = NULL,
        lease_until_ms = NULL
    WHERE state = 'running' AND holder IN (SELECT node_id FROM gone);
    UPDATE schema_versions SET oldest_program = p_oldest WHERE version = p_oldest;
    RETURN FOUND;
END $$;

REVOKE ALL ON FUNCTION lock_programs_below_v1(integer), end_programs_below_v1(integer) FROM PUBLIC;

-- A caller's temporary tables and its search path must not stand in for ours.
DO $$
DECLARE
    v_function text;
BEGIN
    FOREACH v_function IN ARRAY ARRAY['lock_programs_below_v1(integer)', 'end_programs_below_v1(integer)']
    LOOP
        EXECUTE format('ALTER FUNCTION %s SET search_path = pg_catalog, %I, pg_temp', v_function, current_schema());
    END LOOP;
END $$;
