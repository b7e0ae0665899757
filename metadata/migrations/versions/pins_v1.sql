-- Pins, for roles that may read and no more: the functions run with the rights of the schema's owner, and nobody may
-- call them but who was granted it (`siltstone migrate --reader ROLE`). A role ends and renews its own pins only.
--
-- What a pin may cost is bounded: a day at most, unless it is renewed. So is how long taking one holds up deletions:
-- the killers' lock is held for the reading of a clock, and not until the end of the caller's transaction, which may be
-- long in coming.

CREATE FUNCTION pin_files_v1(p_holder text, p_ttl_ms bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $$
DECLARE
    v_now_ms bigint;
    v_pin_id bigint;
BEGIN
    -- The killers' lock (metadata/postgres_rows.py): deaths in flight end first, and are seen by every later snapshot;
    -- whatever dies later reads its time after ours. Of the session, so that it can be let go at once.
    BEGIN
        PERFORM pg_advisory_lock(7310575219);
        v_now_ms := clock_ms();
        PERFORM pg_advisory_unlock(7310575219);
    EXCEPTION WHEN query_canceled OR OTHERS THEN
        -- A lock of the session outlives what is rolled back. (One that was not held yet is a warning, no error.)
        PERFORM pg_advisory_unlock(7310575219);
        RAISE;
    END;
    INSERT INTO pins (holder, role, created_ms, expires_ms)
    VALUES (left(p_holder, 200), session_user, v_now_ms, v_now_ms + least(p_ttl_ms, 86400000))
    RETURNING pin_id INTO v_pin_id;
    RETURN v_pin_id;
END $$;

-- False when it has run out, or is not ours.
CREATE FUNCTION beat_pin_v1(p_pin_id bigint, p_ttl_ms bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $$
BEGIN
    UPDATE pins SET expires_ms = clock_ms() + least(p_ttl_ms, 86400000)
    WHERE pin_id = p_pin_id AND role = session_user AND expires_ms > clock_ms();
    RETURN FOUND;
END $$;

CREATE FUNCTION unpin_v1(p_pin_id bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $$
BEGIN
    DELETE FROM pins WHERE pin_id = p_pin_id AND role = session_user;
    RETURN FOUND;
END $$;

REVOKE ALL ON FUNCTION pin_files_v1(text, bigint), beat_pin_v1(bigint, bigint), unpin_v1(bigint) FROM PUBLIC;

-- A caller's temporary tables and its search path must not stand in for ours.
DO $$
DECLARE
    v_function text;
BEGIN
    FOREACH v_function IN ARRAY ARRAY['pin_files_v1(text, bigint)', 'beat_pin_v1(bigint, bigint)', 'unpin_v1(bigint)']
    LOOP
        EXECUTE format('ALTER FUNCTION %s SET search_path = pg_catalog, %I, pg_temp', v_function, current_schema());
    END LOOP;
END $$;
