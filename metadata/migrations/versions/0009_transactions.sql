-- Adds only: programs of older schemas never see what is new here, and `use_transactions_v1.sql` keeps them away before
-- the first row of it is made.

-- Epochs of the coordinators of all transactional ids. Never given twice. Markers carry them, in Kafka's int32.
CREATE SEQUENCE transaction_epochs AS integer CACHE 1;

-- A row per transactional id. There is no prepared state: an end is one call (end_transactions_v1.sql).
-- Locks: rows by producer id, before groups, before watermarks.
CREATE TABLE transactions (
    transactional_id bytea PRIMARY KEY CHECK (length(transactional_id) BETWEEN 1 AND 2000),
    producer_id bigint NOT NULL CONSTRAINT transactions_producer UNIQUE,
    producer_epoch smallint NOT NULL CHECK (producer_epoch >= 0),
    prev_producer_id bigint NOT NULL DEFAULT -1,  -- whose epochs are used up
    last_producer_epoch smallint NOT NULL DEFAULT -1,  -- that a client gave for the present one; -1: none did
    state smallint NOT NULL DEFAULT 0 CHECK (state IN (0, 1, 4, 5)),  -- Kafka's: empty, ongoing, committed, aborted
    txn_seq bigint NOT NULL DEFAULT 0,  -- +1 when a transaction begins
    client_version smallint NOT NULL DEFAULT 1,
    timeout_ms integer NOT NULL,
    deadline_ms bigint,  -- of the ongoing transaction
    started_ms bigint,
    updated_ms bigint NOT NULL,
    group_ids bytea[] NOT NULL DEFAULT '{}',  -- of the ongoing or the last transaction
    owner_id integer NOT NULL,
    coordinator_epoch integer NOT NULL,
    CONSTRAINT transactions_ongoing CHECK ((state = 1) = (deadline_ms IS NOT NULL))
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

CREATE INDEX transactions_deadline ON transactions (deadline_ms) WHERE state = 1;

-- The partitions of ongoing transactions. Made under the lock of the transaction's row; changed and deleted under that of
-- the watermark too.
CREATE TABLE transaction_partitions (
    partition_id integer NOT NULL,
    producer_id bigint NOT NULL,
    epoch smallint NOT NULL,
    txn_seq bigint NOT NULL,
    first_offset bigint,  -- NULL until the transaction has records here
    PRIMARY KEY (producer_id, partition_id)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

CREATE INDEX transaction_partitions_open ON transaction_partitions (partition_id, first_offset)
    WHERE first_offset IS NOT NULL;

-- Aborted transactions that may have records. The commit of a merge that took them all deletes the row.
CREATE TABLE aborted_transactions (
    partition_id integer NOT NULL,
    last_offset bigint NOT NULL,  -- the marker
    producer_id bigint NOT NULL,
    first_offset bigint NOT NULL,
    stable_offset bigint NOT NULL,  -- no transaction that ended later began below it; never falls with last_offset
    PRIMARY KEY (partition_id, last_offset)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 10000);

CREATE INDEX aborted_transactions_stable ON aborted_transactions (partition_id, stable_offset);

-- Offsets of groups that ongoing transactions hold back.
CREATE TABLE transaction_offsets (
    producer_id bigint NOT NULL,
    group_id bytea NOT NULL,
    topic_id uuid NOT NULL,
    partition integer NOT NULL,
    committed_offset bigint NOT NULL,
    leader_epoch integer NOT NULL,
    metadata bytea NOT NULL,
    written_ms bigint NOT NULL,
    PRIMARY KEY (producer_id, group_id, topic_id, partition)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

CREATE INDEX transaction_offsets_group ON transaction_offsets (group_id);
CREATE INDEX transaction_offsets_topic ON transaction_offsets (topic_id);

-- The bytes of a file of markers, which no object holds; and the transactions that begin and end in a file
-- (metadata/transactions/rows.py).
ALTER TABLE files ADD COLUMN inline bytea, ADD COLUMN txn bytea;

-- Readers of topics ask for these too. Roles of other kinds get their rights by `siltstone migrate --agent|--compactor`.
DO $$
DECLARE
    v_role text;
BEGIN
    FOR v_role IN
        SELECT DISTINCT quote_ident(p.grantee) FROM information_schema.column_privileges p
        WHERE p.table_schema = current_schema() AND p.table_name = 'files' AND p.column_name = 'index'
            AND p.privilege_type = 'SELECT' AND p.grantee <> current_user AND p.grantee <> 'PUBLIC'
    LOOP
        EXECUTE format('GRANT SELECT (inline) ON files TO %s', v_role);
        EXECUTE format('GRANT SELECT (partition_id, producer_id, first_offset) ON transaction_partitions TO %s', v_role);
        EXECUTE format('GRANT SELECT (partition_id, last_offset, producer_id, first_offset, stable_offset)'
            ' ON aborted_transactions TO %s', v_role);
    END LOOP;
END $$;
