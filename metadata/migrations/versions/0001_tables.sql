-- The first schema. Times are bigint milliseconds since the epoch, from this server's clock_timestamp().
-- No foreign key touches the commit: watermarks, files and producers are written four times a second by every agent.

CREATE FUNCTION clock_ms() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE
    AS $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint $$;

CREATE TABLE cluster (
    id boolean PRIMARY KEY DEFAULT true CHECK (id),  -- one row
    cluster_id text NOT NULL,
    store_bound boolean NOT NULL DEFAULT false,
    -- The server somebody vouched for: with another one nothing is deleted (metadata/history.py). Never empty, or a
    -- restored database could be taken for a new one.
    adopted_system_identifier bigint NOT NULL,
    adopted_timeline bigint NOT NULL,
    created_ms bigint NOT NULL DEFAULT clock_ms(),
    -- Cluster-wide broker configs that are set, by Kafka's names, and what they mean for topics, by topic config.
    broker_configs jsonb NOT NULL DEFAULT '{}',
    topic_defaults jsonb NOT NULL DEFAULT '{}',
    next_producer_id bigint NOT NULL DEFAULT 0 CHECK (next_producer_id >= 0),
    -- What forgotten rows leave behind: the newest hour (yyyymmddhh) of a forgotten key, the highest ids.
    forgotten_key_hour bigint NOT NULL DEFAULT 0,
    forgotten_change_id bigint NOT NULL DEFAULT 0,
    forgotten_file_id bigint NOT NULL DEFAULT 0
);

-- Node ids of agents and compactors, in Kafka's int32, never reused.
CREATE SEQUENCE node_ids AS integer;

-- Locked by every commit of the writer. The lease lies in `agents`, so that a hung commit does not cost it.
CREATE TABLE writers (
    writer_id integer PRIMARY KEY DEFAULT nextval('node_ids'),
    host text NOT NULL,
    port integer NOT NULL CHECK (port BETWEEN 0 AND 65535),
    epoch integer NOT NULL DEFAULT 0,
    last_seq bigint NOT NULL DEFAULT -1,
    -- The highest (epoch, seq) whose file row was forgotten.
    forgotten_epoch integer NOT NULL DEFAULT -1,
    forgotten_seq bigint NOT NULL DEFAULT -1,
    CONSTRAINT writers_address UNIQUE (host, port)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
ALTER SEQUENCE node_ids OWNED BY NONE;

CREATE TABLE agents (
    writer_id integer PRIMARY KEY,
    epoch integer NOT NULL,
    zone text NOT NULL DEFAULT '',
    lease_until_ms bigint NOT NULL,
    draining boolean NOT NULL DEFAULT false
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

CREATE TABLE topics (
    topic_id uuid PRIMARY KEY,
    name text NOT NULL CONSTRAINT topics_name UNIQUE,
    configs jsonb NOT NULL,
    config_version bigint NOT NULL DEFAULT 1,
    created_ms bigint NOT NULL
);

-- The last deletion of each name. A topic made under it again tells by this which producers may be older than itself.
CREATE TABLE deleted_topics (
    name text PRIMARY KEY,
    deleted_ms bigint NOT NULL
);

CREATE SEQUENCE partition_ids AS integer;

CREATE TABLE partitions (
    partition_id integer PRIMARY KEY DEFAULT nextval('partition_ids'),
    topic_id uuid NOT NULL,
    partition integer NOT NULL CHECK (partition >= 0),
    created_ms bigint NOT NULL,
    predecessor_deleted_ms bigint,  -- when the last topic of this name was deleted; NULL: none was
    CONSTRAINT partitions_topic_partition UNIQUE (topic_id, partition)
);

-- Narrow and hot: its rows are the locks that order a partition. Half-empty pages keep the updates HOT.
CREATE TABLE watermarks (
    partition_id integer PRIMARY KEY,
    next_offset bigint NOT NULL DEFAULT 0 CHECK (next_offset >= 0)
) WITH (
    fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

CREATE TABLE log_starts (
    partition_id integer PRIMARY KEY,
    log_start_offset bigint NOT NULL DEFAULT 0 CHECK (log_start_offset >= 0),
    last_stable_offset bigint,  -- NULL: no open transaction, equal to the high watermark
    cleaned_through_offset bigint NOT NULL DEFAULT 0,  -- exclusive; moved only by passes from the log start
    last_cleaned_ms bigint,
    last_forced_ms bigint,
    passes_needed integer NOT NULL DEFAULT 1 CHECK (passes_needed >= 1),
    requested_through_offset bigint  -- somebody asked for compaction up to here; NULL: nobody, or it was done
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

-- CACHE 1: a session that kept ids in store would give an older id to a later commit, and break offset order.
CREATE SEQUENCE file_ids CACHE 1;

CREATE TABLE files (
    file_id bigint PRIMARY KEY DEFAULT nextval('file_ids'),
    key text NOT NULL CONSTRAINT files_key UNIQUE,
    level smallint NOT NULL CHECK (level BETWEEN 0 AND 2),
    state text NOT NULL CHECK (state IN ('live', 'dead', 'deleted', 'aborted')),
    class text CHECK (class IN ('plain', 'compacted')),  -- NULL: L0 (mixed) and aborted
    writer_id integer,
    epoch integer,
    seq bigint,
    lo bigint,
    hi bigint,
    size_bytes bigint NOT NULL CHECK (size_bytes >= 0),
    crc32c bigint NOT NULL CHECK (crc32c BETWEEN 0 AND 4294967295),
    created_ms bigint NOT NULL,
    dead_ms bigint,
    max_ts_ms bigint,
    job_id bigint,
    live_extents integer NOT NULL DEFAULT 0,
    config_version bigint,
    trouble_until_ms bigint,  -- a merge of it failed: left alone until then
    trouble text,
    results bytea NOT NULL DEFAULT '\x',
    index bytea NOT NULL DEFAULT '\x01'
) WITH (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

CREATE UNIQUE INDEX files_writer_seq ON files (writer_id, epoch, seq) WHERE level = 0;
CREATE INDEX files_live ON files (level, file_id) WHERE state = 'live';
CREATE INDEX files_dead ON files (dead_ms, file_id) WHERE state = 'dead';
CREATE INDEX files_not_live ON files (state, created_ms) WHERE state <> 'live';

CREATE TABLE extents (
    extent_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    partition_id integer NOT NULL,
    base_offset bigint NOT NULL CHECK (base_offset >= 0),
    last_offset bigint NOT NULL,
    file_id bigint NOT NULL,
    position bigint NOT NULL CHECK (position >= 0),
    length bigint NOT NULL CHECK (length >= 0),
    block_index_position bigint NOT NULL CHECK (block_index_position >= 0),
    block_index_length integer NOT NULL CHECK (block_index_length >= 0),
    record_count bigint NOT NULL CHECK (record_count >= 0),
    crc32c bigint NOT NULL CHECK (crc32c BETWEEN 0 AND 4294967295),
    min_ts_ms bigint NOT NULL,
    max_ts_ms bigint NOT NULL,
    state text NOT NULL CHECK (state IN ('live', 'dead')),
    dead_ms bigint,
    has_tombstones boolean NOT NULL DEFAULT false,
    flagged_reason text,
    CONSTRAINT extents_range CHECK (last_offset >= base_offset)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 10000);

CREATE INDEX extents_live ON extents (partition_id, last_offset) WHERE state = 'live';
CREATE INDEX extents_file ON extents (file_id);

CREATE TABLE compactors (
    node_id integer PRIMARY KEY,
    host text NOT NULL,
    lease_until_ms bigint NOT NULL
) WITH (fillfactor = 50);

-- Who plans, retains or sweeps now. Saves double work; nothing is safe because of it.
CREATE TABLE duties (
    name text PRIMARY KEY,
    holder integer NOT NULL,
    until_ms bigint NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE merge_jobs (
    job_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind text NOT NULL,
    state text NOT NULL DEFAULT 'ready' CHECK (state IN ('ready', 'running', 'done', 'failed')),
    epoch integer NOT NULL DEFAULT 0,  -- grows with every claim
    spec jsonb NOT NULL,
    holder integer,
    attempts integer NOT NULL DEFAULT 0,
    created_ms bigint NOT NULL,
    started_ms bigint,
    deadline_ms bigint,
    finished_ms bigint,
    lease_until_ms bigint,
    not_before_ms bigint NOT NULL DEFAULT 0,  -- given back for trouble: nobody claims it before
    give_backs integer NOT NULL DEFAULT 0,  -- for trouble
    limit_ms bigint NOT NULL,
    input_files integer NOT NULL,
    input_bytes bigint NOT NULL,
    forced_partition_ids integer[] NOT NULL DEFAULT '{}',
    progress jsonb NOT NULL DEFAULT '{}',
    result jsonb NOT NULL DEFAULT '{}',
    error text NOT NULL DEFAULT '',
    output_file_ids bigint[] NOT NULL DEFAULT '{}',  -- the answer of the commit, for its repeat
    trimmed_extents integer NOT NULL DEFAULT 0
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

CREATE INDEX merge_jobs_live ON merge_jobs (job_id) WHERE state IN ('ready', 'running');
CREATE INDEX merge_jobs_ended ON merge_jobs (finished_ms) WHERE state IN ('done', 'failed');

-- Of live jobs only: the rows go when their job ends. So no extent is input of two live jobs.
CREATE TABLE merge_inputs (
    job_id bigint NOT NULL,
    file_id bigint,  -- a whole L0 file
    extent_id bigint,
    CONSTRAINT merge_inputs_one CHECK (num_nonnulls(file_id, extent_id) = 1)
);

CREATE INDEX merge_inputs_job ON merge_inputs (job_id);
CREATE UNIQUE INDEX merge_inputs_file ON merge_inputs (file_id) WHERE file_id IS NOT NULL;
CREATE UNIQUE INDEX merge_inputs_extent ON merge_inputs (extent_id) WHERE extent_id IS NOT NULL;

-- Files that die while a pin lives stay until it ends. Only the role that took it may renew or end it (pins_v1.sql).
CREATE TABLE pins (
    pin_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    holder text NOT NULL,
    role text NOT NULL DEFAULT session_user,
    created_ms bigint NOT NULL,
    expires_ms bigint NOT NULL
);

-- Arrays of at most five batches, oldest first, of equal length.
CREATE TABLE producers (
    partition_id integer NOT NULL,
    producer_id bigint NOT NULL CHECK (producer_id >= 0),
    epoch smallint NOT NULL CHECK (epoch >= 0),
    first_sequences integer[] NOT NULL,
    last_sequences integer[] NOT NULL,
    base_offsets bigint[] NOT NULL,
    log_append_times_ms bigint[] NOT NULL,
    last_seen_ms bigint NOT NULL,
    PRIMARY KEY (partition_id, producer_id)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

CREATE TABLE producer_id_blocks (
    first_id bigint PRIMARY KEY,
    count bigint NOT NULL CHECK (count > 0),
    allocated_ms bigint NOT NULL
);

-- Epochs of the owners of all groups. Never given twice: not even a group that is deleted and made anew has an old one.
CREATE SEQUENCE group_epochs CACHE 1;

-- What clients name is bytea, in UTF-8: text would refuse the NUL characters that Kafka takes, and so fail a whole call.
CREATE TABLE groups (
    group_id bytea PRIMARY KEY CHECK (length(group_id) <= 2000),
    epoch bigint NOT NULL,
    owner_id integer NOT NULL,
    protocol_type bytea NOT NULL DEFAULT '',
    generation integer NOT NULL DEFAULT 0,
    protocol bytea,
    leader bytea,
    members bytea NOT NULL DEFAULT '\x0100000000',  -- metadata/group_members.py; above 2 kB compressed, out of line
    member_count integer NOT NULL DEFAULT 0,
    subscribed_topics bytea[],
    empty_since_ms bigint,
    CONSTRAINT groups_empty CHECK ((empty_since_ms IS NULL) = (member_count > 0))
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

-- Updated by every offset commit, in columns that no index has: half-empty pages keep the updates HOT. A row is written
-- only under the lock of its group (see commit_offsets_v1.sql), or by the deletion of its topic.
CREATE TABLE group_offsets (
    group_id bytea NOT NULL,
    topic_id uuid NOT NULL,
    partition integer NOT NULL,
    committed_offset bigint NOT NULL,
    leader_epoch integer NOT NULL,
    metadata bytea NOT NULL,
    committed_ms bigint NOT NULL,
    PRIMARY KEY (group_id, topic_id, partition)
) WITH (
    fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

CREATE INDEX group_offsets_topic ON group_offsets (topic_id);

CREATE SEQUENCE change_ids CACHE 1;

CREATE TABLE changes (
    change_id bigint PRIMARY KEY,
    kind text NOT NULL,
    topic_id uuid,
    detail jsonb NOT NULL,
    created_ms bigint NOT NULL
);

-- Ids are in commit order: the lock is taken before the id is drawn and held until the transaction is visible.
-- Call it last in the transaction, because everybody who changes anything waits behind it.
CREATE FUNCTION append_change_v1(p_kind text, p_topic_id uuid, p_detail jsonb) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_change_id bigint;
BEGIN
    PERFORM pg_advisory_xact_lock(7310575217);
    v_change_id := nextval('change_ids');
    INSERT INTO changes (change_id, kind, topic_id, detail, created_ms)
    VALUES (v_change_id, p_kind, p_topic_id, p_detail, clock_ms());
    RETURN v_change_id;
END
$$;
