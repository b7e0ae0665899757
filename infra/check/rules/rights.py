"""The roles' rights are those of the list `rights.txt`: no more, no less, on nothing else, under the same conditions.

The rules of `access.py` say why a right is wrong. This rule needs no reason: a right that is not in the list is a
finding. So is a missing right, without which a task would fail in the middle of its work.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

from infra.check import iam
from infra.check.rules.access import granted
from infra.check.rules.data import store_of
from infra.check.stack import Stack, Violation
from infra.check.terraform import Resource

LIST: Final = Path(__file__).parents[1] / "rights.txt"
SESSION: Final = "s3express:CreateSession"
DIRECTORY_SUFFIX: Final = "--x-s3"
TRUST: Final = "sts:AssumeRole"
ATTACHED: Final = "policy"
# The names of ARNs in the list, those of the own account. No wildcards, except where no single resource can be named.
OWN: Final = "OWN"  # in place of the account's number
NAMES: Final = {
    name: re.compile(pattern)
    for name, pattern in {
        "anything": r"\*",
        "key": rf"arn:aws:kms:[\w-]+:{OWN}:key/[\w-]+",
        "workspace": rf"arn:aws:aps:[\w-]+:{OWN}:workspace/[\w-]+",
        "application": rf"arn:aws:emr-serverless:[\w-]+:{OWN}:/applications/\w+",
        "jobrun": rf"arn:aws:emr-serverless:[\w-]+:{OWN}:/applications/\w+/jobruns/\*",
        "logs": rf"arn:aws:logs:[\w-]+:{OWN}:log-group:/siltstone/[\w/-]+:\*",
        "secret": rf"arn:aws:secretsmanager:[\w-]+:{OWN}:secret:[\w!/+=.@-]+",
        "admin-task": rf"arn:aws:ecs:[\w-]+:{OWN}:task-definition/[\w-]+-admin:\*",
        "repositories": r"arn:aws:ecr:\*:\*:repository/\*",
    }.items()
}
ROLE: Final = re.compile(rf"arn:aws:iam::{OWN}:role/[\w-]+-(\w+)")


@dataclass(frozen=True, slots=True)
class Right:
    """One line of the list, or one action that a plan allows a role."""

    on: set[str] = field(default_factory=set[str])
    where: set[str] = field(default_factory=set[str])
    may_be_missing: bool = False
    optional: set[str] = field(default_factory=set[str])
    """Those of `on` that go with a second store."""


Rights = dict[tuple[str, str], Right]  # by role and action


class DamagedRights(Exception):
    """A line of the list cannot be read."""


def listed(text: str) -> Rights:
    """The rights of the list. Raises DamagedRights, which names the line."""
    found: Rights = {}
    for number, line in enumerate(text.splitlines(), 1):
        columns = re.split(r"\s{2,}", line.strip())
        if line.startswith("#") or not line.strip():
            continue
        if len(columns) not in (3, 4):
            raise DamagedRights(
                f"{LIST.name}, line {number}: role, right, on and where, at least two spaces between: {line!r}"
            )
        role, action, on, *where = columns
        may_be_missing = action.startswith("(")
        key = (role, action.strip("()"))
        if key in found:
            raise DamagedRights(f"{LIST.name}, line {number}: {role} has {key[1]} already")
        names = {name.strip("()") for name in on.split()}
        optional = {name.strip("()") for name in on.split() if name.startswith("(")}
        found[key] = Right(names, set(" ".join(where).split()), may_be_missing, optional)
    return found


@cache
def list_of_the_tree() -> Rights:
    return listed(LIST.read_text(encoding="utf-8"))


def role_of(name: object) -> str:
    return str(name).rsplit("-", 1)[-1]


def named(arn: str, account: str, first: tuple[str, str], second: tuple[str, str]) -> str:
    """The name of an ARN in the list; the ARN itself if it has no name there. Stores are buckets and prefixes."""
    own = arn.replace(f":{account}:", f":{OWN}:", 1)
    (bucket, prefix), (second_bucket, second_prefix) = first, second
    directory = re.fullmatch(rf"arn:aws:s3express:[\w-]+:{OWN}:bucket/{re.escape(second_bucket)}", own)
    if second_bucket and (directory or arn == f"arn:aws:s3:::{second_bucket}"):
        return "second"
    if arn == f"arn:aws:s3:::{bucket}":
        return "bucket"
    folders = [(f"arn:aws:s3:::{bucket}/{prefix}/", ""), (f"arn:aws:s3:::{bucket}/{prefix}-code/", "code/")]
    folders += [(f"arn:aws:s3:::{second_bucket}/{second_prefix}/", "second:")] if second_bucket else []
    for folder, name in folders:
        if arn.startswith(folder):
            return name + arn.removeprefix(folder)
    if role := ROLE.fullmatch(own):
        return f"role:{role[1]}"
    return next((name for name, pattern in NAMES.items() if pattern.fullmatch(own)), arn)


def given(stack: Stack) -> Iterator[tuple[Resource, str, str, str, set[str]]]:
    """(resource, role, action, resources of the right, keys of its conditions)"""
    first, second = store_of(stack, "SILTSTONE_OBJECT_STORE_URL"), store_of(stack, "SILTSTONE_PRODUCE_STORE_URL")
    for policy, role, statement in granted(stack):
        actions = [*statement.actions, *(f"all but {action}" for action in statement.not_actions)]
        resources = [named(arn, stack.account, first, second) for arn in statement.resources]
        resources += [f"all but {arn}" for arn in statement.not_resources]
        for action in actions:
            for resource in resources:
                yield policy, role_of(role), action, resource, conditions_of(statement)
    for role in stack.of("aws_iam_role"):
        for statement in iam.statements(role.values["assume_role_policy"]):
            for principal in statement.principals if statement.allows else ():
                on = principal.removeprefix("Service:")
                yield role, role_of(role.values.get("name")), TRUST, on, conditions_of(statement)
    for resource, role, arn in attached(stack):
        yield resource, role_of(role), ATTACHED, arn.rsplit("/", 1)[-1], set()


def is_needed(name: str, action: str, second_bucket: str) -> bool:
    """Whether a name that goes with a second store is needed with this one: a directory bucket knows sessions alone."""
    if not second_bucket or name == "second-store.json":
        return bool(second_bucket)
    return second_bucket.endswith(DIRECTORY_SUFFIX) == (action == SESSION)


def conditions_of(statement: iam.Statement) -> set[str]:
    return {key for keys in statement.conditions.values() for key in keys}


def attached(stack: Stack) -> Iterator[tuple[Resource, object, str]]:
    """(resource, role, managed policy), whichever way it is attached."""
    for one in stack.of("aws_iam_role_policy_attachment"):
        yield one, one.values.get("role"), str(one.values.get("policy_arn"))
    for role in stack.of("aws_iam_role"):
        for arn in iam.several(role.values.get("managed_policy_arns")):
            yield role, role.values.get("name"), arn


def rights_are_those_of_the_list(stack: Stack) -> Iterator[Violation]:
    known = list_of_the_tree()
    seen: dict[tuple[str, str], set[str]] = {}
    roles: dict[str, Resource] = {role_of(role.values.get("name")): role for role in stack.of("aws_iam_role")}
    remedy = "add it to infra/check/rights.txt if it is intended, and comment on the reason where it is given"
    for resource, role, action, on, where in given(stack):
        right = known.get((role, action), Right())
        seen.setdefault((role, action), set()).add(on)
        if on not in right.on:
            yield Violation(resource, f"the role {role} may {action} on {on}, which is not in the list", remedy)
        elif where != right.where:
            now, meant = (", ".join(sorted(keys)) or "none" for keys in (where, right.where))
            yield Violation(resource, f"{action} of the role {role} has the conditions {now}, not {meant}", remedy)
    second_bucket, _ = store_of(stack, "SILTSTONE_PRODUCE_STORE_URL")
    for (role, action), right in known.items():
        needed = right.on - {name for name in right.optional if not is_needed(name, action, second_bucket)}
        resource = roles.get(role)
        gone = needed - seen.get((role, action), set())
        is_left_out = right.may_be_missing and gone == needed
        if resource is not None and gone and not is_left_out:
            message = f"the role {role} may not {action} on {', '.join(sorted(gone))}"
            yield Violation(
                resource, message, "give the right, or take it out of infra/check/rights.txt if nobody needs it"
            )
