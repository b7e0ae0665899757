"""What `siltstone doctor` makes of the facts: pure judgement, one `Check` per question.

FAIL means that Siltstone cannot run there or could lose what it acknowledged; WARN, that something will hurt later.
Facts come from `metadata/postgres/probe.py` and `storage/probe.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from metadata.postgres.probe import PostgresFacts
from storage.probe import REMEDY, ProbeResult
from storage.s3.bucket import BucketFacts

POSTGRES_VERSION_MIN = 150_000
PYTHON_VERSION_MIN = (3, 11)
SKEW_WARN_MS = 2_000
SKEW_FAIL_MS = 60_000
"""Keys are filed by the hour of the writer's clock and orphans aged by the store's: a minute apart, they mislead."""
SNAPSHOT_WARN_MS = 60_000
"""A snapshot held this long makes the hot rows of the commit slow: vacuum cannot remove what it may still see."""
STORE_CLOCK_RESOLUTION_MS = 1_000
"""S3 tells times in whole seconds."""
CONNECTIONS_MIN = 50


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
    """How far another clock is from ours; `resolution_ms` is what theirs is rounded to."""
    skew_ms = max(0, abs(theirs_ms - ours_ms) - resolution_ms)
    direction = "ahead of" if theirs_ms > ours_ms else "behind"
    detail = f"{skew_ms / 1000:.1f} s {direction} ours" if skew_ms >= 100 else "agrees with ours"
    remedy = "let both machines follow NTP"
    if skew_ms > SKEW_FAIL_MS:
        return failure(name, detail, remedy)
    if skew_ms > SKEW_WARN_MS:
        return warning(name, detail, remedy)
    return passed(name, detail)


def judge_postgres(facts: PostgresFacts, now_ms: int) -> Sequence[Check]:
    """Every question about Postgres; `now_ms` is our clock when its clock was read."""
    return [
        _version(facts),
        _durability(facts),
        _failover(facts),
        _pooler(facts),
        _schema(facts),
        _rights(facts),
        _connections(facts),
        _snapshots(facts),
        judge_skew("postgres clock", facts.clock_ms, now_ms),
    ]


def judge_store(facts: ProbeResult) -> Sequence[Check]:
    """Every question about an object store that a probe of its behaviour answers."""
    create = passed("store conditional create", facts.detail)
    if not facts.honours_if_none_match:
        create = failure("store conditional create", facts.detail, REMEDY)
    checksum = passed("store checksums", "kept")
    if not facts.keeps_crc32c:
        checksum = passed("store checksums", "not kept: a PUT in doubt is settled by reading the object")
    clock = judge_skew("store clock", facts.store_clock_ms, facts.clock_ms, resolution_ms=STORE_CLOCK_RESOLUTION_MS)
    return [create, checksum, clock]


def judge_bucket(facts: BucketFacts) -> Check:
    """Whether what is deleted is gone."""
    name = "store versioning"
    if facts.versioned is None:
        return warning(name, "the store does not say", "grant s3:GetBucketVersioning, or see that it is off")
    if not facts.versioned:
        return passed(name, "off: what is deleted is gone")
    if facts.noncurrent_days is None:
        return warning(
            name,
            "on, and no lifecycle rule removes noncurrent versions",
            "deleted records would stay for ever: add NoncurrentVersionExpiration for the prefix, or do not version it",
        )
    return passed(name, f"on, noncurrent versions go after {facts.noncurrent_days} d")


def _version(facts: PostgresFacts) -> Check:
    if facts.version_number < POSTGRES_VERSION_MIN:
        return failure("postgres version", facts.version, "use Postgres 15 or newer")
    return passed("postgres version", facts.version)


def _durability(facts: PostgresFacts) -> Check:
    name = "postgres durability"
    if not facts.crash_safe:
        return failure(name, "fsync or full_page_writes is off", "set both to on: a crash would lose commits")
    if facts.synchronous_commit in ("off", "local"):
        return failure(
            name,
            f"synchronous_commit is {facts.synchronous_commit} for this role",
            "set it to on: what was acknowledged could be lost",
        )
    return passed(name, f"fsync on, synchronous_commit {facts.synchronous_commit}")


def _failover(facts: PostgresFacts) -> Check:
    name = "postgres failover"
    if facts.is_standby:
        return failure(name, "this is a standby, which takes no writes", "name the primary")
    if not facts.synchronous_standbys:
        return warning(
            name,
            "no synchronous standby",
            "a failover must lose nothing: configure synchronous_standby_names, or a service that does (Multi-AZ)",
        )
    return passed(name, f"synchronous standbys: {facts.synchronous_standbys}")


def _pooler(facts: PostgresFacts) -> Check:
    name = "postgres pooler"
    if not facts.direct:
        return failure(
            name,
            "a pooler stands between",
            "connect to Postgres itself: LISTEN, session settings and prepared statements need one backend",
        )
    return passed(name, "none between")


def _schema(facts: PostgresFacts) -> Check:
    name = "schema"
    present, wanted = facts.schema, facts.revision_needed
    if present.revision is None:
        return failure(name, "the database has none", "run `siltstone migrate`")
    if present.revision == wanted:
        return passed(name, f"revision {wanted}")
    if present.takes(wanted):
        return warning(
            name,
            f"revision {present.revision} is newer than this release's {wanted}, and takes it",
            "an upgrade is under way: end it by starting the newer release everywhere",
        )
    if present.is_newer_than(wanted):
        remedy = "start the release that migrated the database, or a newer one"
        return failure(name, f"revision {present.revision} does not take this release, which is for {wanted}", remedy)
    return failure(name, f"revision {present.revision}, this release needs {wanted}", "run `siltstone migrate`")


def _rights(facts: PostgresFacts) -> Check:
    name = "postgres rights"
    if facts.tables_lacking_rights:
        shown = ", ".join(facts.tables_lacking_rights[:5])
        return failure(
            name,
            f"the role may not read and write {shown}",
            "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO the role",
        )
    if not facts.may_create:
        remedy = "agents do not need it; `siltstone migrate` does: GRANT CREATE ON SCHEMA public TO the role"
        verdict = failure if facts.schema.revision is None else warning
        return verdict(name, "the role may not create tables", remedy)
    return passed(name, "tables and schema")


def _connections(facts: PostgresFacts) -> Check:
    name = "postgres connections"
    if facts.connections_max < CONNECTIONS_MIN:
        return warning(name, f"max_connections is {facts.connections_max}", f"set it to {CONNECTIONS_MIN} or more")
    return passed(name, f"max_connections is {facts.connections_max}")


def _snapshots(facts: PostgresFacts) -> Check:
    name = "postgres snapshots"
    if facts.oldest_snapshot_ms > SNAPSHOT_WARN_MS:
        return warning(
            name,
            f"a transaction has held a snapshot for {facts.oldest_snapshot_ms // 1000} s",
            "end it (pg_stat_activity shows it): commits grow slower while it lasts",
        )
    return passed(name, "no old one is held")
