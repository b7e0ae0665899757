"""Settings of earlier releases that are constants now.

Their names are accepted for one release after the removal, with a warning, so that files written for the release before
go on working; the value given is not used. After that release the row goes, and the name is refused like any unknown
one.
"""

from __future__ import annotations

import sys
from typing import NamedTuple


class Removed(NamedTuple):
    release: str
    """The first release without the setting; the next one refuses the name."""
    constant: str
    """The value that stands now, and where it is."""


_PLAN = "in PlanOptions (compactor/planning/spec.py)"
_INTERVALS = "in Intervals (compactor/intervals.py)"

REMOVED_SETTINGS = {
    "compaction.daily.interval.ms": Removed("0.1.0", f"daily_interval_ms = 86400000 {_PLAN}"),
    "compaction.dead.bytes.min": Removed("0.1.0", f"mostly_dead_bytes_min = 67108864 {_PLAN}"),
    "compaction.dead.percent": Removed("0.1.0", f"mostly_dead_fraction = 0.5 {_PLAN}"),
    "compaction.expiry.margin.ms": Removed("0.1.0", f"expiry_margin_ms = 3600000 {_PLAN}"),
    "compaction.l0.bytes.min": Removed("0.1.0", f"l0_bytes_min = 536870912 {_PLAN}"),
    "compaction.l0.files.min": Removed("0.1.0", f"l0_files_min = 32 {_PLAN}"),
    "compaction.l0.job.bytes.max": Removed("0.1.0", f"l0_job_bytes_max = 536870912 {_PLAN}"),
    "compaction.l0.job.files.max": Removed("0.1.0", f"l0_job_files_max = 1024 {_PLAN}"),
    "compaction.l0.wait.ms": Removed("0.1.0", f"l0_wait_ms = 10000 {_PLAN}; compaction.l0.wait.max.ms bounds it"),
    "compaction.l1.runs.min": Removed("0.1.0", f"l1_runs_min = 32 {_PLAN}"),
    "compaction.l2.runs.min": Removed("0.1.0", f"l2_runs_min = 10 {_PLAN}"),
    "compaction.output.bytes": Removed("0.1.0", f"output_bytes = 1073741824 {_PLAN}"),
    "compaction.plain.bytes.max": Removed("0.1.0", f"l2_plain_bytes_max = 17179869184 {_PLAN}"),
    "compactor.plan.interval.ms": Removed("0.1.0", f"plan_interval_ms = 1000 {_INTERVALS}"),
    "connection.requests.max": Removed("0.1.0", "REQUESTS_MAX = 1000 in agents/connections/connection.py"),
    "default.replication.factor": Removed("0.1.0", "1 in metadata/configs/broker.py"),
    "fetch.max.wait.ms": Removed("0.1.0", "WAIT_MS_MAX = 60000 in agents/handlers/fetch.py"),
    "janitor.interval.ms": Removed("0.1.0", f"janitor_interval_ms = 60000 {_INTERVALS}"),
    "max.incremental.fetch.session.cache.slots": Removed("0.1.0", "SESSIONS_MAX = 1000 in agents/read/sessions.py"),
    "offset.metadata.max.bytes": Removed(
        "0.1.0", "OFFSET_METADATA_MAX_BYTES = 4096 in agents/handlers/offsets_to_commit.py"
    ),
    "offsets.retention.check.interval.ms": Removed("0.1.0", "CHECK_INTERVAL_MS = 600000 in agents/groups/expiry.py"),
    "orphan.check.interval.ms": Removed("0.1.0", f"orphan_check_interval_ms = 4000000 {_INTERVALS}"),
    "read.concurrency": Removed("0.1.0", "READS_AT_ONCE = 16 in agents/read/path.py"),
}
"""By dotted name."""

_warned: set[str] = set()


def warn_of_removed(name: str, *, source: str) -> None:
    """Once per name and process, on stderr: settings are read before the log is set up, because they set it up."""
    if name in _warned:
        return
    _warned.add(name)
    sys.stderr.write(
        f"warning: the setting {name} (in {source}) has no effect since release {REMOVED_SETTINGS[name].release}: it is"
        f" the constant {REMOVED_SETTINGS[name].constant}. Remove it; a later release refuses the name.\n"
    )
