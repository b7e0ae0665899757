"""Choose the user that the embedded Postgres runs as.

Postgres refuses to run as root. An ordinary user runs it under the same user. A user id without a name on this machine
runs it as `nobody` in a user namespace, because Postgres needs a name. For root there are two ways, in this order:

1. In a user namespace in which root is `nobody` (`unshare --map-user`). No file on disk changes its owner or rights.
2. If user namespaces are refused (as in many containers): as the user `nobody`, which then owns the database files and
   must be able to reach them. If `nobody` cannot reach them, that is an error; the rights of folders are never widened.

An existing data directory keeps its owner.
"""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from runtime.errors import BadInputError

NOBODY_IN_NAMESPACE = 65534


class CannotRunAsError(BadInputError):
    """There is no user as which Postgres may run on this data directory."""


class PopenIdentity(TypedDict, total=False):
    """Arguments of `subprocess.Popen` that set the user of the child."""

    user: int
    group: int
    extra_groups: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAs:
    prefix: tuple[str, ...] = ()
    """Words that come before the command."""
    other_user: tuple[int, int] | None = None
    """The uid and gid if the child changes its user. That user must own the files of the child."""

    def command(self, argv: Sequence[str | Path]) -> list[str]:
        return [*self.prefix, *map(str, argv)]

    def popen(self) -> PopenIdentity:
        if self.other_user is None:
            return {}
        uid, gid = self.other_user
        return {"user": uid, "group": gid, "extra_groups": ()}

    def give(self, path: Path) -> None:
        """Make the child's user the owner of a file."""
        if self.other_user is not None:
            os.chown(path, *self.other_user, follow_symlinks=False)


def choose_run_as(data: Path, *, environ: Mapping[str, str]) -> RunAs:
    """The user for `data`, which may not exist yet; its parent must exist. Raises CannotRunAsError."""
    owner = data.stat().st_uid if data.exists() else None
    me = os.geteuid()
    if me != 0:
        if owner not in (None, me):
            raise CannotRunAsError(
                f"the data directory {data} belongs to user id {owner}, not to yours ({me})",
                remedy="run as the owner, choose another directory with --data, or pass --metadata",
            )
        return RunAs() if _is_known(me) else _as_unknown_user(me, environ)
    # The namespace maps root's own files only, and a directory of another owner keeps that owner.
    if owner in (None, 0):
        prefix = namespace_prefix(environ)
        if prefix is not None:
            return RunAs(prefix=prefix)
    if owner == 0:
        raise CannotRunAsError(
            f"Postgres refuses to run as root, user namespaces are refused here, and {data} belongs to root",
            remedy="run as an ordinary user, choose another directory with --data, or pass --metadata",
        )
    return _as_nobody(data, owner)


def namespace_prefix(environ: Mapping[str, str]) -> tuple[str, ...] | None:
    """The command that runs another one as `nobody` in a user namespace; None if that is not possible here."""
    unshare = shutil.which("unshare", path=environ.get("PATH"))
    if unshare is None:
        return None
    prefix = (unshare, "--user", f"--map-user={NOBODY_IN_NAMESPACE}", f"--map-group={NOBODY_IN_NAMESPACE}", "--")
    try:
        probe = subprocess.run(  # noqa: S603
            # `unshare` runs itself: a program that is certainly there, and can be executed inside the namespace.
            [*prefix, "/proc/self/exe", "--version"],
            capture_output=True,
            timeout=30,
            check=False,
            start_new_session=True,  # otherwise a Ctrl-C here would look like a refusal
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return prefix if probe.returncode == 0 else None


def reachable_by_others(path: Path) -> Path | None:
    """The first folder on the way down to `path` that other users may not pass through; None if there is none."""
    for folder in reversed([path, *path.parents]):
        if not folder.stat().st_mode & stat.S_IXOTH:
            return folder
    return None


def _is_known(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


def _as_unknown_user(uid: int, environ: Mapping[str, str]) -> RunAs:
    """For a user id without a name, as in containers. Postgres needs a name, and in the namespace there is one."""
    prefix = namespace_prefix(environ)
    if prefix is None:
        raise CannotRunAsError(
            f"Postgres refuses to run as user id {uid}, which has no name on this machine, and user namespaces are"
            " refused here",
            remedy="run as a user with a name, or pass --metadata to use another Postgres",
        )
    return RunAs(prefix=prefix)


def _as_nobody(data: Path, owner: int | None) -> RunAs:
    try:
        nobody = pwd.getpwnam("nobody")
    except KeyError:
        nobody = None
    if nobody is None or owner not in (None, nobody.pw_uid):
        whose = "there is no user `nobody`" if nobody is None else f"{data} belongs to user id {owner}"
        raise CannotRunAsError(
            f"Postgres refuses to run as root and user namespaces are refused here, and {whose}",
            remedy="run as an ordinary user, or pass --metadata to use another Postgres",
        )
    closed = reachable_by_others(data.parent.resolve())
    if closed is not None:
        raise CannotRunAsError(
            f"Postgres refuses to run as root, user namespaces are refused here, and the user `nobody` cannot pass"
            f" through {closed} to {data}",
            remedy="run as an ordinary user, choose a directory open to all with --data, or pass --metadata",
        )
    return RunAs(other_user=(nobody.pw_uid, nobody.pw_gid))
