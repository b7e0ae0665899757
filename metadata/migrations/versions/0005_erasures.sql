-- Adds only: programs of older schemas never see what is new here.

-- Requests that remove the records of named keys from every object; metadata/erasures/contract.py tells their life.
CREATE TABLE erasures (
    erasure_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topic_id uuid NOT NULL,  -- the topic may be gone by now: the erasure goes on until its bytes are
    topic_name text NOT NULL,
    stage text NOT NULL CHECK (stage IN ('waiting', 'erasing', 'resting', 'done')),
    -- Drawn under a lock that is held until it is visible: whoever sees a stamp sees all smaller ones. No stamp is given
    -- twice. NULL: no stage of erasing has begun.
    stamp bigint CONSTRAINT erasures_stamp UNIQUE CHECK (stamp > 0),
    erases_tombstones boolean NOT NULL DEFAULT false,  -- the present or coming stage of erasing takes them as well
    keys integer NOT NULL CHECK (keys > 0),
    tombstones integer NOT NULL CHECK (tombstones BETWEEN 0 AND keys),
    l0_through bigint NOT NULL,  -- the newest file at the request: L0 files up to it were committed before
    rest_ms bigint NOT NULL DEFAULT 0 CHECK (rest_ms >= 0),
    created_ms bigint NOT NULL,
    next_ms bigint NOT NULL,
    begin_ms bigint NOT NULL,
    deadline_ms bigint NOT NULL,
    done_ms bigint,
    secret bytea NOT NULL,
    report jsonb NOT NULL DEFAULT '{}',
    CONSTRAINT erasures_stamped CHECK ((stamp IS NULL) = (stage = 'waiting')),
    CONSTRAINT erasures_done CHECK ((done_ms IS NULL) = (stage <> 'done'))
);

CREATE INDEX erasures_open ON erasures (erasure_id) WHERE stage <> 'done';

CREATE TABLE erasure_keys (
    erasure_id bigint NOT NULL REFERENCES erasures ON DELETE CASCADE,
    partition integer NOT NULL CHECK (partition >= 0),
    partition_id integer NOT NULL,
    end_offset bigint NOT NULL CHECK (end_offset >= 0),  -- exclusive: the marks lie below
    marks bytea NOT NULL,  -- metadata/erasures/marks.py
    PRIMARY KEY (erasure_id, partition)
);
-- Hashes do not compress.
ALTER TABLE erasure_keys ALTER COLUMN marks SET STORAGE EXTERNAL;

-- Dead extents of a partition whose objects may still exist: an erasure waits for them.
CREATE INDEX extents_dead ON extents (partition_id, base_offset) WHERE state = 'dead';
-- Its end is the greatest stamp of all extents.
CREATE INDEX extents_erased ON extents (erased_through) WHERE erased_through > 0;
