"""The file of `siltstone users export` and `import`: a line of JSON for each credential.

It holds what an agent holds: salts, iterations and keys, no password. Whoever reads it can try passwords on it, and
pose as an agent to these users; so it belongs to its owner alone.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from metadata.security.contract import UserChange
from runtime.errors import BadInputError, SiltstoneError
from security.scram import BY_SASL_NAME, Mechanism, ScramCredential, check_credential, check_name

Users = Mapping[str, Mapping[Mechanism, ScramCredential]]
STREAM = Path("-")
"""stdout of the export, stdin of the import."""
_FIELDS = {"user", "mechanism", "iterations", "salt", "stored_key", "server_key"}


def write_new(file: Path, text: str) -> None:
    """A new file that its owner alone can read. Raises BadInputError, OSError."""
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise BadInputError(
            f"{file} is there already; nothing was written", remedy="name a new file, or remove this one"
        ) from None
    with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
        opened.write(text)
        opened.flush()
        os.fsync(descriptor)


def read_text(file: Path) -> str:
    """Raises BadInputError, OSError."""
    try:
        return (sys.stdin.buffer.read() if file == STREAM else file.read_bytes()).decode("utf-8")
    except UnicodeDecodeError:
        raise BadInputError(
            f"{source_name(file)} is not UTF-8; nothing was done",
            remedy="name a file that `siltstone users export` wrote",
        ) from None


def source_name(file: Path) -> str:
    return "stdin" if file == STREAM else str(file)


def lines_of(users: Users) -> str:
    """The same users give the same file. Names may hold what steers a terminal, so all is printable ASCII."""
    return "".join(
        json.dumps(
            {
                "user": name,
                "mechanism": mechanism.sasl_name,
                "iterations": users[name][mechanism].iterations,
                "salt": _text(users[name][mechanism].salt),
                "stored_key": _text(users[name][mechanism].stored_key),
                "server_key": _text(users[name][mechanism].server_key),
            }
        ).replace("\x7f", "\\u007f")
        + "\n"
        for name in sorted(users)
        for mechanism in sorted(users[name])
    )


def changes_of(text: str, source: str) -> Sequence[UserChange]:
    """Raises BadInputError, which quotes nothing of the file: it holds keys."""
    found: dict[tuple[str, Mechanism], UserChange] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            change = _change(json.loads(line))
        except (ValueError, KeyError, TypeError, RecursionError, SiltstoneError):
            # `from None`: the error holds the line.
            raise BadInputError(
                f"{source}, line {number}, is no credential of a user; nothing was done",
                remedy="name a file that `siltstone users export` wrote, whole and unchanged",
            ) from None
        if found.setdefault((change.name, change.mechanism), change) is not change:
            raise BadInputError(
                f"{source}, line {number}: a second {change.mechanism.sasl_name} of user {change.name!r}; nothing was"
                " done",
                remedy="remove one of the two lines",
            )
    return list(found.values())


def _change(value: Any) -> UserChange:
    fields = cast(Mapping[str, Any], value)
    if set(fields) != _FIELDS:
        raise ValueError
    name, mechanism, iterations = fields["user"], BY_SASL_NAME[fields["mechanism"]], fields["iterations"]
    if not isinstance(name, str) or type(iterations) is not int:
        raise TypeError
    credential = ScramCredential(
        mechanism=mechanism,
        iterations=iterations,
        salt=_octets(fields["salt"]),
        stored_key=_octets(fields["stored_key"]),
        server_key=_octets(fields["server_key"]),
    )
    check_name(name)
    check_credential(credential)
    return UserChange(name=name, mechanism=mechanism, credential=credential)


def _text(octets: bytes) -> str:
    return base64.b64encode(octets).decode()


def _octets(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
