"""The report of a finished erasure: canonical JSON, keyed hashes of the keys, and a signature. Pure but for `save`.

The report names no key. For each mark it has [HMAC-SHA-256 of the key's SHA-512/256 under the erasure's secret, the
offset below which its records went, whether a tombstone there went too]. Whoever has the secret can show that a key was
in it, and nobody else can guess keys. The secret goes into a file of its own.
"""

from __future__ import annotations

import hmac
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from metadata.erasures.contract import Erasure, ErasureStage, KeyMark
from runtime.errors import BadInputError
from runtime.text import plural, size_text
from siltstone.kafka.record_format import time_text

SEEN_LATE_MS = 60_000
"""A compactor looks every 10 s, so one that began to look so late has taken over from another."""
NOT_COVERED = (
    "tables until their next export, copies of them, whatever consumers wrote elsewhere, backups, replicas"
    " of the bucket, and old versions of objects in a versioned bucket (docs/erasure.md)"
)
FORMAT = "siltstone-erasure-report-1"


class NotDoneError(BadInputError):
    """An erasure has no report before it is done."""


class ReportFileError(BadInputError):
    """The report may not be written to this path. Nothing was written."""


class SigningKeyError(BadInputError):
    """The file is no private Ed25519 key in PEM, or the package that reads it is not installed."""


def keyed_hash(secret: bytes, key_hash: bytes) -> str:
    return hmac.digest(secret, key_hash, "sha256").hex()


def report_of(erasure: Erasure, marks: Mapping[int, Sequence[KeyMark]]) -> dict[str, Any]:
    """Raises NotDoneError."""
    if erasure.stage is not ErasureStage.DONE or erasure.done_ms is None:
        raise NotDoneError(
            f"erasure {erasure.erasure_id} is not done ({erasure.stage.value}), so there is no report yet",
            remedy=f"`siltstone erase status {erasure.erasure_id}` says what it waits on",
        )
    return {
        "format": FORMAT,
        "done_ms": erasure.done_ms,
        "deadline_kept": erasure.done_ms <= erasure.deadline_ms,
        "account": dict(erasure.report),
        "not_covered": NOT_COVERED,
        "keyed_marks": {
            str(number): sorted(
                [keyed_hash(erasure.secret, mark.key_hash), mark.before_offset, mark.tombstone] for mark in each
            )
            for number, each in sorted(marks.items())
        },
    }


def report_pairs(report: Mapping[str, Any]) -> dict[str, str]:
    """The account of the compactor that ended the erasure, in short."""
    files: Sequence[Mapping[str, Any]] = report.get("files", ())
    listing: Mapping[str, Any] = report.get("listing", {})
    ended = Counter(str(each.get("ended", "")) for each in files)
    said = {"files": ", ".join(f"{count:,} {how}" for how, count in sorted(ended.items())) or "none"} if report else {}
    since_ms, created_ms = report.get("files_seen_since_ms"), report.get("created_ms")
    if since_ms is not None and created_ms is not None and since_ms - created_ms > SEEN_LATE_MS:
        said["files"] += f"; seen since {time_text(since_ms)}, when another compactor took over"
    if listing:
        size = size_text(listing.get("size_bytes", 0))
        said["bucket"] = f"{plural(listing.get('objects', 0), 'object')} ({size}) at the end"
        said["listing"] = f"SHA-256 {listing.get('sha256', '')}"
    return said


def canonical_json(value: Any) -> bytes:
    """Sorted names, no spaces, UTF-8: equal values have equal bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def read_signing_key(path: Path) -> Ed25519PrivateKey:
    """Raises SigningKeyError, OSError."""
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        why = "is encrypted" if isinstance(error, TypeError) else "is no private key in PEM"
        raise SigningKeyError(
            f"{path} {why}; nothing was written",
            remedy="make one with `openssl genpkey -algorithm ed25519 -out erasures.pem`",
        ) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise SigningKeyError(
            f"{path} is a key of another kind than Ed25519; nothing was written",
            remedy="make one with `openssl genpkey -algorithm ed25519 -out erasures.pem`",
        )
    return key


def save(path: Path, report: Mapping[str, Any], secret: bytes, key: Ed25519PrivateKey | None) -> Sequence[Path]:
    """Write the report, beside it the secret (readable by the owner alone) and, with a key, the signature over the
    report's bytes. Returns the files. Raises ReportFileError, OSError."""
    data = canonical_json(report)
    if not path.name:
        raise ReportFileError("--report needs the name of a file; nothing was written", remedy="give, say, report.json")
    secret_path, signature_path = (path.with_name(path.name + ending) for ending in (".secret", ".sig"))
    # An older signature beside a new report would not fit it, and the path may be that of a key.
    if there := [str(each) for each in (path, secret_path, signature_path) if each.exists()]:
        raise ReportFileError(
            f"{there[0]} is there already; nothing was written", remedy="name another file, or move this one away"
        )
    path.write_bytes(data)
    secret_path.touch(mode=0o600)
    secret_path.chmod(0o600)
    secret_path.write_text(secret.hex() + "\n")
    if key is None:
        return [path, secret_path]
    signature_path.write_bytes(key.sign(data))
    return [path, secret_path, signature_path]
