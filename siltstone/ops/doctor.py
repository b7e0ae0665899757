"""The judgement of `siltstone doctor` about the facts: one `Check` per question. Pure.

FAIL: Siltstone cannot run here, or could lose acknowledged records. WARN: something will cause trouble later.
Facts come from `metadata/postgres/probes/facts.py` and `storage/probe.py`.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from metadata.postgres.probes.facts import PostgresFacts
from metadata.postgres.probes.pooler import Pooler
from runtime.text import plural
from siltstone.ops.producers import Producer, advice_for, round_text
from storage.probe import REMEDY, ProbeResult
from storage.s3.bucket import BucketFacts

POSTGRES_VERSION_MIN = 150_000
PYTHON_VERSION_MIN = (3, 11)
SKEW_WARN_MS = 2_000
SKEW_FAIL_MS = 60_000
"""Keys contain the hour of the writer's clock, and the store's clock gives the age of orphans. A minute apart, the
two mislead the janitor."""
SNAPSHOT_WARN_MS = 60_000
"""A snapshot held this long slows commits down: vacuum cannot remove dead versions of their hot rows."""
STORE_CLOCK_RESOLUTION_MS = 1_000
"""S3 gives times in whole seconds."""


class Verdict(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One question with its answer."""

    name: str
    verdict: Verdict
    detail: str
    remedy: str = ""


def passed(name: str, detail: str) -> Check:
    return Check(name=name, verdict=Verdict.OK, detail=detail)


def warning(name: str, detail: str, remedy: str) -> Check:
    return Check(name=name, verdict=Verdict.WARN, detail=detail, remedy=remedy)


def failure(name: str, detail: str, remedy: str) -> Check:
    return Check(name=name, verdict=Verdict.FAIL, detail=detail, remedy=remedy)


def judge_python(version: tuple[int, int, int]) -> Check:
    text = ".".join(map(str, version))
    if version[:2] < PYTHON_VERSION_MIN:
        return failure("python", text, "use Python 3.11 or newer")
    return passed("python", text)


def judge_skew(name: str, theirs_ms: int, ours_ms: int, *, resolution_ms: int = 0) -> Check:
    """The distance of another clock from ours; their times are rounded to `resolution_ms`."""
    # Rounding alone may explain a difference of `resolution_ms`, so that much is forgiven.
    skew_ms = max(0, abs(theirs_ms - ours_ms) - resolution_ms)
    direction = "ahead of" if theirs_ms > ours_ms else "behind"
    detail = f"{skew_ms / 1000:.1f} s {direction} ours" if skew_ms >= 100 else "agrees with ours"
    remedy = "synchronize both machines by NTP"
    if skew_ms > SKEW_FAIL_MS:
        return failure(name, detail, remedy)
    if skew_ms > SKEW_WARN_MS:
        return warning(name, detail, remedy)
    return passed(name, detail)


def judge_postgres(facts: PostgresFacts, now_ms: int) -> Sequence[Check]:
    """All questions about Postgres. `now_ms` is our clock at the moment its clock was read."""
    return [
        _version(facts),
        _durability(facts),
        _failover(facts),
        _pooler(facts),
        _schema(facts),
        _rights(facts),
        _snapshots(facts),
        *_readers(facts),
        judge_skew("postgres clock", facts.clock_ms, now_ms),
    ]


def _readers(facts: PostgresFacts) -> Sequence[Check]:
    if not facts.readers_past_acls:
        return []
    return [
        warning(
            "acls",
            f"no ACL reaches {', '.join(facts.readers_past_acls)}: readers without agents may see every topic, if they"
            " may get objects of the bucket",
            "give such a role and such rights only to those who may read all topics (docs/security.md)",
        )
    ]


def judge_store(facts: ProbeResult, store: str = "store") -> Sequence[Check]:
    """All questions about an object store that a probe of its behaviour answers."""
    create = passed(f"{store} conditional create", facts.detail)
    if not facts.honours_if_none_match:
        create = failure(f"{store} conditional create", facts.detail, REMEDY)
    checksum = passed(f"{store} checksums", "kept")
    if not facts.keeps_crc32c:
        checksum = passed(f"{store} checksums", "not kept: after a PUT with an unknown outcome the object is read back")
    clock = judge_skew(f"{store} clock", facts.store_clock_ms, facts.clock_ms, resolution_ms=STORE_CLOCK_RESOLUTION_MS)
    return [create, checksum, clock]


def judge_room(path: str, free_bytes: int, reserve_bytes: int, store: str = "store") -> Check:
    """The space of a store in a directory, and of the embedded Postgres beside it."""
    name = f"{store} space"
    detail = f"{free_bytes >> 20:,} MiB are free at {path}, {reserve_bytes >> 20:,} MiB are kept free"
    if free_bytes <= reserve_bytes:
        return failure(
            name,
            f"disk full: {detail}, so agents refuse produce and compactors write nothing",
            "free space, or add some; acknowledged records are safe, nothing needs to be restored",
        )
    if free_bytes <= 2 * reserve_bytes:
        return warning(name, f"{detail}: below that, produce is refused", "free space soon, or add some")
    return passed(name, detail)


def judge_bucket(facts: BucketFacts, store: str = "store") -> Check:
    """Whether deleted objects are really gone."""
    name = f"{store} versioning"
    if facts.versioned is None:
        return warning(
            name, "the store does not tell", "grant s3:GetBucketVersioning, or make sure that versioning is off"
        )
    if not facts.versioned:
        return passed(name, "off: deleted objects are gone")
    if facts.noncurrent_days is None:
        return warning(
            name,
            "on, and no lifecycle rule removes noncurrent versions",
            "deleted records stay for ever: add NoncurrentVersionExpiration for the prefix, or turn versioning off",
        )
    return passed(name, f"on, noncurrent versions are deleted after {facts.noncurrent_days} d")


def _version(facts: PostgresFacts) -> Check:
    if facts.version_number < POSTGRES_VERSION_MIN:
        return failure("postgres version", facts.version, "use Postgres 15 or newer")
    return passed("postgres version", facts.version)


def _durability(facts: PostgresFacts) -> Check:
    name = "postgres durability"
    if not facts.crash_safe:
        return failure(name, "fsync or full_page_writes is off", "set both to on: a crash would lose commits")
    # `local` waits for this server's disk only: a failover to the standby could lose the commit.
    if facts.synchronous_commit in ("off", "local"):
        return failure(
            name,
            f"synchronous_commit is {facts.synchronous_commit} for this role",
            "set it to on: acknowledged records could be lost",
        )
    return passed(name, f"fsync on, synchronous_commit {facts.synchronous_commit}")


def _failover(facts: PostgresFacts) -> Check:
    name = "postgres failover"
    if facts.is_standby:
        return failure(name, "this is a standby, which takes no writes", "use the address of the primary")
    if not facts.synchronous_standbys:
        return warning(
            name,
            "no synchronous standby",
            "a failover may lose commits: set synchronous_standby_names, or use a service that does (Multi-AZ)",
        )
    return passed(name, f"synchronous standbys: {facts.synchronous_standbys}")


def _pooler(facts: PostgresFacts) -> Check:
    name = "postgres pooler"
    if facts.pooler is Pooler.SESSION:
        return passed(name, "one in session mode: it needs as many server connections as there would be without it")
    return passed(name, "none: the connection is direct")


def _schema(facts: PostgresFacts) -> Check:
    name = "schema"
    present, wanted = facts.schema, facts.revision_needed
    if present.revision is None:
        return failure(name, "the database has no schema", "run `siltstone migrate`")
    if present.revision == wanted:
        return passed(name, f"revision {wanted}")
    if present.takes(wanted):
        return warning(
            name,
            f"revision {present.revision} is newer than this release's {wanted}, and accepts it",
            "an upgrade is under way: finish it by starting the newer release everywhere",
        )
    if present.is_newer_than(wanted):
        remedy = "start the release that migrated the database, or a newer one"
        return failure(name, f"revision {present.revision} does not accept this release, which needs {wanted}", remedy)
    return failure(name, f"revision {present.revision}, this release needs {wanted}", "run `siltstone migrate`")


def _rights(facts: PostgresFacts) -> Check:
    name = "postgres rights"
    if facts.lacking_rights_on:
        shown = ", ".join(facts.lacking_rights_on[:5])
        return failure(
            name,
            f"role {facts.role} lacks rights of agents on {shown}",
            # Never all rights: a role that may change users or ACLs is a super user of the cluster.
            f"`siltstone migrate --agent {shlex.quote(facts.role)}`, or --compactor, gives a role what its process"
            " needs; a role that only reads needs none of this: run doctor with the agents' role",
        )
    if facts.schema.revision is not None and not facts.owns_schema:
        return passed(name, f"those of a program; {facts.role} does not own the schema")
    if not facts.may_create:
        remedy = "agents do not need it; `siltstone migrate` does: GRANT CREATE ON SCHEMA public TO the role"
        # Without a schema nothing can start before `siltstone migrate` has run, and that needs the right to create.
        verdict = failure if facts.schema.revision is None else warning
        return verdict(name, f"role {facts.role} may not create tables", remedy)
    return passed(name, "tables and schema")


def _snapshots(facts: PostgresFacts) -> Check:
    name = "postgres snapshots"
    if facts.oldest_snapshot_ms > SNAPSHOT_WARN_MS:
        return warning(
            name,
            f"a transaction of {facts.oldest_snapshot_ms // 1000:,} s keeps vacuum from removing dead rows, so"
            " commits get slower and slower",
            "end it: SiltstoneLongTransaction and SiltstoneOldestXmin in docs/operations/runbook.md say how to find it",
        )
    if facts.sessions_hidden:
        hidden = plural(facts.sessions_hidden, "session")
        return passed(name, f"none that this role sees; {hidden} of other roles are hidden (GRANT pg_read_all_stats)")
    return passed(name, "no transaction of a minute or more holds vacuum back")


def judge_producers(producers: Sequence[Producer]) -> Check:
    """The producers that an agent has seen since it started."""
    name = "producers"
    slow = [each for each in producers if each.waits and advice_for(each)]
    if not slow:
        return passed(name, "none waits for small batches")
    worst = max(slow, key=lambda each: each.wait_ms)
    others = f", and {len(slow) - 1} more" if len(slow) > 1 else ""
    return warning(
        name,
        f"{worst.client_id or worst.software or 'a client'} has waited {worst.waiting_share:.0%} of its time since the"
        f" agents started, with {round_text(worst)} a round{others}",
        f"{advice_for(worst)}; `siltstone producers` shows those that wait now",
    )
