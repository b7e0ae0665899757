"""Object keys. Only this module makes and parses them.

`l0/<2-hex shard>/<yyyymmddhh UTC>/<writer id>-<epoch>-<uuid7>.silt`. The shard, the first byte of SHA-256 of the uuid,
spreads the request rate over a store's partitions. The hour lets the janitor list old objects alone. The uuid makes the
key unique, so that HEAD can settle a PUT in doubt. The store's own prefix is not part of a key.

Every store applies `check_key` before it acts. So no key comes to be that one store would take and another would
refuse, or would read as a path out of its directory.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime

from runtime.errors import BadInputError
from storage.objects import ObjectStoreError

L0_PREFIX = "l0/"
LEVEL_PREFIXES = (L0_PREFIX, "l1/", "l2/")
CLUSTER_KEY = "cluster.json"
SECOND_KEY = "second-store.json"
"""Names the second store, in which L0 files lie, if the cluster has one (`storage/second_store.py`)."""
JOBS_PREFIX = "jobs/"
"""Plans, manifests and side files of heavy merges; the janitor removes those of jobs that are over."""
PROBE_PREFIX = "probe/"
"""Keys of `storage/probe.py`, which removes them itself; nothing durable lies here."""

KEY_BYTES_MAX = 900
"""The longest key in bytes. S3 allows 1,024 for the store's prefix and the key together."""
KEY_PART_BYTES_MAX = 255
"""The longest file name on Linux, in bytes."""

_FILE_KEY = re.compile(
    r"l(?P<level>[0-2])/(?P<shard>[0-9a-f]{2})/(?P<hour>[0-9]{10})/"
    r"(?P<writer_id>0|[1-9][0-9]{0,9})-(?P<epoch>0|[1-9][0-9]{0,18})-"
    r"(?P<uuid>[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12})\.silt",
    re.ASCII,
)
_JOB_KEY = re.compile(
    r"jobs/(?P<job_id>0|[1-9][0-9]{0,18})/(?P<fingerprint>[0-9a-f]{32})/(?P<name>[a-z0-9][a-z0-9._/-]{0,200})", re.ASCII
)
_UNIT_NAME = re.compile(r"u(0|[1-9][0-9]{0,8})\.json\.zst", re.ASCII)
_FAILED_NAME = re.compile(r"(failed|unread)-(0|[1-9][0-9]{0,8})\.json\.zst", re.ASCII)
FAILED_NAME = "failed-"
"""The start of the names of objects that a unit leaves when it failed for good."""
UNREAD_NAME = "unread-"
"""The start of the names of objects that a unit leaves when it could not read an input."""
PLAN_NAME = "plan.json.zst"
"""An object of frames. It keeps the name of the JSON that it was: janitors of older releases know it by that."""


class BadKeyError(ObjectStoreError, BadInputError):
    """The key is one that no store takes, or not the key of a file of ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileKey:
    """The parts of a file's key."""

    level: int
    hour: str
    """`yyyymmddhh`, UTC, by the writer's estimate of the metadata store's clock."""
    writer_id: int
    epoch: int
    file_uuid: uuid.UUID

    @property
    def shard(self) -> str:
        return shard_of(self.file_uuid)


def shard_of(file_uuid: uuid.UUID) -> str:
    """Two hex digits: the first byte of SHA-256 of the uuid's 16 bytes."""
    return hashlib.sha256(file_uuid.bytes).hexdigest()[:2]


def hour_of(wall_ms: int) -> str:
    """`yyyymmddhh` in UTC; sorts as time does."""
    return datetime.fromtimestamp(wall_ms // 1000, UTC).strftime("%Y%m%d%H")


def file_key(*, level: int, writer_id: int, epoch: int, file_uuid: uuid.UUID, created_ms: int) -> str:
    """The key of a file of `level` 0 to 2. Raises BadKeyError for parts that `parse_file_key` could not give back."""
    key = f"l{level}/{shard_of(file_uuid)}/{hour_of(created_ms)}/{writer_id}-{epoch}-{file_uuid}.silt"
    if _FILE_KEY.fullmatch(key) is None:
        raise BadKeyError(
            f"{key!r} cannot be a file's key: level 0 to 2, writer id and epoch >= 0, a uuid of version 7"
        )
    return key


def parse_file_key(key: str) -> FileKey:
    """The parts of a key. Raises BadKeyError for anything `file_key` does not make: another shape, no such hour, a
    wrong shard.
    """
    found = _FILE_KEY.fullmatch(key)
    if found is None:
        raise BadKeyError(f"{key!r} is not the key of a file (level/shard/hour/writer-epoch-uuid.silt)")
    file_uuid = uuid.UUID(found["uuid"])
    # A key that we cannot have made: a stranger's object, or one that was copied by hand.
    if found["shard"] != shard_of(file_uuid):
        raise BadKeyError(f"{key!r} lies in shard {found['shard']}, its uuid belongs in {shard_of(file_uuid)}")
    try:
        datetime.strptime(found["hour"], "%Y%m%d%H")
    except ValueError as error:
        raise BadKeyError(f"{key!r} names hour {found['hour']}, which does not exist") from error
    return FileKey(
        level=int(found["level"]),
        hour=found["hour"],
        writer_id=int(found["writer_id"]),
        epoch=int(found["epoch"]),
        file_uuid=file_uuid,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobKey:
    """The parts of the key of an object of a heavy merge."""

    job_id: int
    fingerprint: str
    """The plan's fingerprint."""
    name: str
    """`plan.json.zst`, `u<unit>.json.zst`, `failed-<unit>.json.zst`, `unread-<unit>.json.zst`, or a name without a
    meaning here."""

    @property
    def unit(self) -> int | None:
        """The unit, if this is the key of a unit's manifest, else None."""
        found = _UNIT_NAME.fullmatch(self.name)
        return int(found[1]) if found else None

    @property
    def failed_unit(self) -> int | None:
        """The unit, if this is the key of a unit's failure, for good or not, else None."""
        found = _FAILED_NAME.fullmatch(self.name)
        return int(found[2]) if found else None


def job_key(job_id: int, fingerprint: str, name: str = "") -> str:
    """`jobs/<job id>/<fingerprint>/<name>`; without a name, the prefix of all objects of that plan.

    Raises BadKeyError for parts that `parse_job_key` could not give back.
    """
    key = f"{JOBS_PREFIX}{job_id}/{fingerprint}/{name}"
    # A prefix has no name to check, so any good one stands in for it.
    parse_job_key(key if name else key + PLAN_NAME)
    return key


def unit_key(job_id: int, fingerprint: str, unit: int) -> str:
    """The key of a unit's manifest."""
    return job_key(job_id, fingerprint, f"u{unit}.json.zst")


def failed_key(job_id: int, fingerprint: str, unit: int) -> str:
    """The key of the object that a unit leaves when it failed for good."""
    return job_key(job_id, fingerprint, f"{FAILED_NAME}{unit}.json.zst")


def unread_key(job_id: int, fingerprint: str, unit: int) -> str:
    """The key of the object that a unit leaves when it could not read an input."""
    return job_key(job_id, fingerprint, f"{UNREAD_NAME}{unit}.json.zst")


def parse_job_key(key: str) -> JobKey:
    """The parts of a key. Raises BadKeyError for anything that `job_key` does not make."""
    found = _JOB_KEY.fullmatch(key)
    if found is None:
        raise BadKeyError(f"{key!r} is not the key of an object of a merge job (jobs/job id/plan fingerprint/name)")
    check_key(key)
    return JobKey(job_id=int(found["job_id"]), fingerprint=found["fingerprint"], name=found["name"])


def check_key(key: str) -> None:
    """Raise BadKeyError unless every store can hold `key`.

    Parts are joined by single slashes, are not empty, do not start with a dot (so not "..", nor a store's own hidden
    directories), hold no control character, and fit a file name; the whole fits an S3 key.
    """
    for part in key.split("/"):
        if not part or part.startswith("."):
            raise BadKeyError(f"key {key!r} has an empty part or one that starts with a dot")
        if len(part.encode(errors="replace")) > KEY_PART_BYTES_MAX:
            raise BadKeyError(f"key {key[:80]!r}... has a part over {KEY_PART_BYTES_MAX} bytes")
    # Before `encode` below, which lone surrogates (not printable either) would make raise.
    if not key.isprintable():
        raise BadKeyError(f"key {key!r} holds a character that cannot be printed")
    if len(key.encode()) > KEY_BYTES_MAX:
        raise BadKeyError(f"key {key[:80]!r}... is over {KEY_BYTES_MAX} bytes")
