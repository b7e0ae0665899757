"""The tail: the files and changes that agents follow as other processes commit them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from metadata.contract.files import L0File
from metadata.contract.topics import Topic, Watermarks
from metadata.transactions.contract import OpenTransaction

TAIL_FILES_MAX = 1_000
"""Files per writer that one call of `tail` gives. A follower that is further behind calls again."""
LIVE_FILES_MAX = 1_000
"""Files that one call of `live_files` gives."""


class ChangeKind(StrEnum):
    """Changes of data that agents cache. `Change.detail` is JSON-able; its keys are listed here."""

    TOPIC_CREATED = "topic_created"  # name, partition_ids, configs, created_ms, replication_factor
    TOPIC_DELETED = "topic_deleted"  # name, partition_ids
    CONFIGS_CHANGED = "configs_changed"  # name, configs (all overrides after the change)
    PARTITIONS_ADDED = "partitions_added"  # name, partition_ids (all, after the change)
    LOG_START_MOVED = "log_start_moved"  # offsets: {partition_id as text: log start offset}
    BROKER_CONFIGS_CHANGED = "broker_configs_changed"  # configs (all cluster-wide ones that are set, by Kafka's names)
    MERGED = "merged"  # job_id, l0_files: [ids of L0 files it replaced], deduped: [partition ids]; never both empty
    # Of these three, a detail has at most 1,000 rows, in the form of metadata/security/details.py; a call that changes
    # more makes several changes, which become visible together.
    USERS_CHANGED = "users_changed"  # names, and nothing else of them
    ACLS_CHANGED = "acls_changed"  # added, removed
    QUOTAS_CHANGED = "quotas_changed"  # quotas: (entity, key, new value or null)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    change_id: int
    kind: ChangeKind
    topic_id: uuid.UUID | None
    detail: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """File ids up to which a cursor has everything. It saves a store the look at each writer."""

    file_id: int | None
    """Every L0 file up to this id lies within the cursor, or will never be committed. None: not known of any id."""
    next_file_id: int
    next_xid: int
    """The same becomes true of `next_file_id` when no transaction older than this one runs any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """How far a follower has read: the highest (epoch, seq) per writer, and the last change."""

    writers: Mapping[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])
    change_id: int = 0
    decided: Decided | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    files: Sequence[L0File]
    """Files by file id. Some may be dead already, if a merge was quicker than the follower."""
    changes: Sequence[Change]
    cursor: Cursor
    cold: bool = False
    """True: the cursor is older than the rows that are kept. Take a `snapshot()` and continue from its cursor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The state that an agent needs to start, read at one instant, but for the files.

    The live L0 files are too many to be held at once, or to be read in one transaction: `live_files` gives them in
    slices, each as it is at its call. A follower may take that, because nothing of an L0 file changes while it lives:

    - A file that a merge replaced since is missing. The tail from `cursor` tells of the merge; until then the offsets
      are looked up like those of every merged file.
    - A file that was committed since, with an id below `last_file_id`, may be among them. All its offsets lie at or
      above these `watermarks`, and the tail brings it again.
    """

    topics: Sequence[Topic]
    watermarks: Sequence[Watermarks]
    last_file_id: int
    """The highest id of a live L0 file; 0 if there is none."""
    cursor: Cursor
    broker_configs: Mapping[str, str] = field(default_factory=dict[str, str])
    """The cluster-wide ones that are set, by Kafka's names."""
    open_transactions: Sequence[OpenTransaction] = ()
    """Those with records, on partitions of `watermarks`."""
