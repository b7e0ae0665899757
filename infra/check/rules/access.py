"""Rules for rights: the actions that roles may do, and the principals that may assume them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from infra.check import iam
from infra.check.stack import Stack, Violation, blocks
from infra.check.terraform import Resource

DELETES: Final = (
    "s3:DeleteObject",
    "s3:DeleteObjectVersion",
    "s3:DeleteBucket",
    "s3:PutLifecycleConfiguration",
    "s3:PutBucketPolicy",  # this right lets a role give itself the right to delete
)
ALLOWED_DELETES: Final = ("s3:DeleteObject",)
JANITOR: Final = "-compactor"  # the end of the name of the only role that may delete
# Prefixes that a starting process writes and deletes to probe the store, and prefixes in which the janitor deletes;
# never cluster.json.
PROBES: Final = re.compile(r"^arn:[^*]+/probe/\*$")
DELETED: Final = re.compile(r"^arn:[^*]+/(probe|l0|l1|l2|jobs|catalog)/\*$")
# Actions that IAM supports only for all resources.
WITHOUT_RESOURCE: Final = (
    "cloudwatch:PutMetricData",
    "ec2:Describe*",
    "ecr:GetAuthorizationToken",
    "ecs:DiscoverPollEndpoint",
    "ssmmessages:*",
    "xray:Put*",
)
OWN_ACCOUNT: Final = {"aws:SourceAccount", "aws:SourceArn"}
HOSTS: Final = ("Service:ec2.amazonaws.com",)  # acts for the account of the instance alone, and names none
WIDE_POLICIES: Final = ("AdministratorAccess", "PowerUserAccess", "FullAccess", "IAMFull")


def documents(stack: Stack) -> Iterator[tuple[Resource, str, str]]:
    """(resource, the role it is for, policy document)"""
    for policy in stack.of("aws_iam_role_policy"):
        yield policy, str(policy.values.get("role")), policy.values["policy"]
    for policy in stack.of("aws_iam_policy"):
        yield policy, str(policy.values.get("name")), policy.values["policy"]
    for role in stack.of("aws_iam_role"):
        for inline in blocks(role.values, "inline_policy"):
            if inline.get("policy"):
                yield role, str(role.values.get("name")), inline["policy"]


def granted(stack: Stack) -> Iterator[tuple[Resource, str, iam.Statement]]:
    for policy, role, document in documents(stack):
        for statement in iam.statements(document):
            if statement.allows:
                yield policy, role, statement


def no_wildcard_actions(stack: Stack) -> Iterator[Violation]:
    for policy, _, statement in granted(stack):
        if statement.not_actions:
            yield Violation(
                policy, f"statement {statement.sid!r} allows all actions but some", "name the actions that are needed"
            )
        for action in statement.actions:
            if ("*" in action or "?" in action) and action not in WITHOUT_RESOURCE:
                yield Violation(
                    policy, f"statement {statement.sid!r} allows {action}", "name the actions that are needed"
                )


def no_wildcard_resources(stack: Stack) -> Iterator[Violation]:
    for policy, _, statement in granted(stack):
        if statement.not_resources:
            message = f"statement {statement.sid!r} allows all resources but some"
            yield Violation(policy, message, "name the ARNs in resources")
        wide = any(iam.is_wide(resource) for resource in statement.resources)
        needing = [
            action for action in statement.actions if not any(iam.covers(known, action) for known in WITHOUT_RESOURCE)
        ]
        narrowed = any(
            ("ArnEquals" in test or "ArnLike" in test)
            and "*" not in [one for each in keys.values() for one in iam.several(each)]
            for test, keys in statement.conditions.items()
        )
        if wide and needing and not narrowed:
            message = f"statement {statement.sid!r} allows {', '.join(needing)} on all resources"
            yield Violation(policy, message, "name the ARNs in resources")


def only_the_janitor_deletes(stack: Stack) -> Iterator[Violation]:
    for policy, role, statement in granted(stack):
        may = DELETED if role.endswith(JANITOR) else PROBES
        own = not statement.not_resources and all(may.search(resource) for resource in statement.resources)
        on = ", ".join(statement.resources or [f"all but {each}" for each in statement.not_resources])
        for action in DELETES:
            allowed = own and action in ALLOWED_DELETES
            if not allowed and any(iam.covers(pattern, action) for pattern in statement.actions):
                message = f"statement {statement.sid!r} allows {action} on {on}"
                remedy = "only the compactor's janitor may delete, and only below l0, l1, l2, jobs, catalog and probe"
                yield Violation(policy, message, remedy)


def roles_are_passed_by_name(stack: Stack) -> Iterator[Violation]:
    for policy, _, statement in granted(stack):
        passes = any(iam.covers(pattern, "iam:PassRole") for pattern in statement.actions)
        if passes and (
            any("*" in resource for resource in statement.resources)
            or "iam:PassedToService" not in statement.conditions.get("StringEquals", {})
        ):
            remedy = "name the role in resources, and the service in a condition on iam:PassedToService"
            yield Violation(policy, f"statement {statement.sid!r} passes roles too freely", remedy)


def roles_are_for_services(stack: Stack) -> Iterator[Violation]:
    for role in stack.of("aws_iam_role"):
        for statement in iam.statements(role.values["assume_role_policy"]):
            strangers = [name for name in statement.principals if not name.startswith("Service:")]
            strangers += [f"all but {name}" for name in statement.not_principals]
            if statement.allows and strangers:
                message = f"the role can be taken by {', '.join(strangers)}"
                yield Violation(role, message, "let only the AWS service that runs the task assume it")
            elif statement.allows and not OWN_ACCOUNT & keys_of(statement) and statement.principals != HOSTS:
                message = f"{', '.join(statement.principals)} can take the role on behalf of any account"
                yield Violation(role, message, "add a condition on aws:SourceAccount")


def keys_of(statement: iam.Statement) -> set[str]:
    """The condition keys that a statement compares with given values."""
    return {key for test in ("StringEquals", "ArnLike", "ArnEquals") for key in statement.conditions.get(test, {})}


def no_wide_managed_policies(stack: Stack) -> Iterator[Violation]:
    attached = [(one, one.values.get("policy_arn")) for one in stack.of("aws_iam_role_policy_attachment")]
    attached += [
        (role, arn) for role in stack.of("aws_iam_role") for arn in iam.several(role.values.get("managed_policy_arns"))
    ]
    for resource, arn in attached:
        if any(word in str(arn) for word in WIDE_POLICIES):
            message = f"the role gets {str(arn).rsplit('/', 1)[-1]}"
            yield Violation(resource, message, "write a policy with the actions that are needed")
