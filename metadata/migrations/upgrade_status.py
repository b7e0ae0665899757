"""The steps of an upgrade that are left, for `siltstone upgrade status`, as the release that asks sees them.

A program that waits for the schema holds no lease, so Postgres does not know of it, and it is not counted here. Of one
at work it knows the schema that it was made for, not its release.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from metadata.migrations.grants import RIGHTS, granted_roles, lacking
from metadata.migrations.migrate import MigrationPlan, plan_migration
from metadata.migrations.schema_versions import Running, SchemaState, listed, revision_of, version_of
from metadata.postgres.connection import CONNECTION_ERRORS, connect, unavailable
from runtime.text import plural


class Standing(StrEnum):
    """The schema of a running program beside that of the release that asks."""

    SAME = "this release"
    OLDER = "older"
    TOO_OLD = "too old"
    """The schema of this release does not accept it."""
    NEWER = "newer"


@dataclass(frozen=True, slots=True)
class Role:
    """A role of Postgres with rights of ours: of which kind of program, and on what it lacks some of them."""

    kind: str
    name: str
    lacks: Sequence[str]


@dataclass(frozen=True, slots=True)
class UpgradeStatus:
    plan: MigrationPlan
    roles: Sequence[Role]
    is_owner_run: bool = False
    """Whether the programs are known to run as the schema's owner, so that they need no roles."""

    @property
    def is_refused(self) -> bool:
        """Whether this release is too old for the database."""
        return self.plan.present.is_newer_than(self.plan.target) and not self.plan.present.takes(self.plan.target)

    def standing(self, program: Running) -> Standing:
        if program in self.plan.must_stop:
            return Standing.TOO_OLD
        own = version_of(self.plan.target) or 0
        if program.program == own:
            return Standing.SAME
        return Standing.OLDER if program.program < own else Standing.NEWER

    def left(self) -> Sequence[str]:
        """The next steps, in order, in words; empty: nothing."""
        if self.is_refused:
            return ["start the release that migrated the database, or a newer one: the schema does not accept this one"]
        return [*self._left_of_schema(), *self._left_of_programs()]

    def _left_of_schema(self) -> Iterator[str]:
        plan = self.plan
        if plan.must_stop:
            yield f"stop those that the schema of this release does not accept: {listed(plan.must_stop)}"
        if plan.steps:
            needs = f" as another role: this one lacks {', '.join(plan.missing_rights)}" if plan.missing_rights else ""
            yield f"run `siltstone migrate{_options(self.roles)}`{needs}"
        # The rights for a newer schema are those of its release.
        elif behind := [role for role in self.roles if role.lacks and plan.present.revision == plan.target]:
            why = "; ".join(f"{role.name} lacks rights on {', '.join(role.lacks)}" for role in behind)
            yield f"run `siltstone migrate{_options(behind)}`: {why}"
        if missing := self._kinds_without_role():
            options = "".join(f" --{kind} ROLE" for kind in missing)
            whose = " and none of ".join(RIGHTS[kind].purpose for kind in missing)
            yield (
                f"run `siltstone migrate{options}`: no role of {whose} has rights here (programs that run as the"
                " schema's owner need none: start them)"
            )

    def _kinds_without_role(self) -> Sequence[str]:
        """Empty where a program runs: it shows that it has its rights. And where the schema is not that of this
        release: `siltstone migrate` comes first, or the rights are those of a newer one."""
        if self.is_owner_run or self.plan.running or self.plan.present.revision != self.plan.target:
            return []
        return [kind for kind in _PROGRAMS if all(role.kind != kind for role in self.roles)]

    def _left_of_programs(self) -> Iterator[str]:
        if older := self._of(Standing.OLDER):
            yield f"replace {plural(len(older), 'older program')} by this release: {listed(older)}"
        if newer := self._of(Standing.NEWER):
            yield (
                f"ask a newer release by its own `siltstone upgrade status`, or go back and replace what is of it: "
                f"{listed(newer)}"
            )

    def _of(self, standing: Standing) -> Sequence[Running]:
        return [each for each in self.plan.running if self.standing(each) is standing]


_PROGRAMS = ("agent", "compactor")
"""The kinds of roles that programs need; readers are people's."""


def going_back(state: SchemaState) -> tuple[str, bool] | None:
    """The schema of the release before the one that migrated the database, and whether its programs may come back.
    None: there is no such release."""
    version = version_of(state.revision or "")
    if version is None or version < 2:
        return None
    previous = revision_of(version - 1)
    return previous, state.takes(previous)


def _options(roles: Sequence[Role]) -> str:
    """A command takes one role of each kind."""
    first = {role.kind: role.name for role in reversed(roles)}
    return "".join(f" --{kind} {first[kind]}" for kind in RIGHTS if kind in first)


async def upgrade_status(url: str, *, versions: Path | None = None, is_owner_run: bool = False) -> UpgradeStatus:
    """The status of the database at `url`; `versions` as for `plan_migration`. Raises MetadataUnavailableError."""
    plan = await plan_migration(url, versions=versions)
    connection = await connect(url, application="siltstone-upgrade")
    try:
        roles = [
            Role(kind, name, await lacking(connection, RIGHTS[kind], name))
            for kind, name in await granted_roles(connection)
        ]
    except CONNECTION_ERRORS as error:
        raise unavailable(error) from error
    finally:
        await connection.close()
    return UpgradeStatus(plan, roles, is_owner_run=is_owner_run)
