"""Rules for places of data: buckets, databases, logs, disks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final, cast

from infra.check import iam
from infra.check.stack import Stack, Violation, blocks
from infra.check.terraform import Resource

PUBLIC_ACLS: Final = ("public-read", "public-read-write", "authenticated-read", "website")
ACCESS_BLOCKS: Final = ("block_public_acls", "block_public_policy", "ignore_public_acls", "restrict_public_buckets")
LIFECYCLE_DAYS_MAX: Final = 365
ARCHIVES: Final = ("GLACIER", "DEEP_ARCHIVE")
STORE: Final = re.compile(r"^s3://([^/?]+)/([^?]*)")
SSE: Final = ("AES256", "aws:kms", "aws:kms:dsse")


def bucket_is_closed(stack: Stack) -> Iterator[Violation]:
    """Every bucket has its public access block, all four parts on, and no public ACL."""
    for bucket in stack.of("aws_s3_bucket"):
        guards = stack.for_bucket("aws_s3_bucket_public_access_block", bucket)
        if not guards:
            remedy = "give it an aws_s3_bucket_public_access_block with all four arguments true"
            yield Violation(bucket, "the bucket has no public access block", remedy)
        for guard in guards:
            for argument in ACCESS_BLOCKS:
                if guard.values.get(argument) is not True:
                    yield Violation(
                        guard, f"the bucket is open to the public: {argument} is not true", f"set {argument} = true"
                    )
        for acl in [bucket, *stack.for_bucket("aws_s3_bucket_acl", bucket)]:
            if acl.values.get("acl") in PUBLIC_ACLS:
                yield Violation(
                    acl, f"the bucket's ACL is {acl.values['acl']}", "leave ACLs out: BucketOwnerEnforced has none"
                )


def bucket_policy_admits_no_stranger(stack: Stack) -> Iterator[Violation]:
    for policy in stack.of("aws_s3_bucket_policy"):
        for statement in iam.statements(policy.values["policy"]):
            own = f"AWS:arn:aws:iam::{stack.account}:"
            strangers = [one for one in statement.principals if not one.startswith(own)]
            strangers += [f"all but {one}" for one in statement.not_principals]
            if statement.allows and strangers:
                who = "anybody" if {"*", "AWS:*"} & {*strangers} else ", ".join(strangers)
                message = f"statement {statement.sid!r} of the bucket's policy allows {who}"
                yield Violation(policy, message, "name roles of this account in principals")


def bucket_is_encrypted(stack: Stack) -> Iterator[Violation]:
    for bucket in stack.of("aws_s3_bucket"):
        settings = stack.for_bucket("aws_s3_bucket_server_side_encryption_configuration", bucket)
        algorithms = [
            default.get("sse_algorithm")
            for setting in settings
            for rule in blocks(setting.values, "rule")
            for default in blocks(rule, "apply_server_side_encryption_by_default")
        ]
        if not algorithms or any(algorithm not in SSE for algorithm in algorithms):
            remedy = "give it an aws_s3_bucket_server_side_encryption_configuration with AES256 or aws:kms"
            yield Violation(bucket, "the bucket's encryption is not set", remedy)


def bucket_wants_tls(stack: Stack) -> Iterator[Violation]:
    for bucket in stack.of("aws_s3_bucket"):
        policies = stack.for_bucket("aws_s3_bucket_policy", bucket)
        if not any(refuses_plain_http(policy, bucket) for policy in policies):
            remedy = "deny s3:* to all on the bucket and its objects where aws:SecureTransport is false"
            yield Violation(bucket, "the bucket's policy does not refuse requests without TLS", remedy)


def refuses_plain_http(policy: Resource, bucket: Resource) -> bool:
    needed = {bucket.values["arn"], f"{bucket.values['arn']}/*"}
    return any(
        not statement.allows
        and "s3:*" in statement.actions
        and "*" in {principal.removeprefix("AWS:") for principal in statement.principals}
        and needed <= set(statement.resources)
        # and under no other condition
        and statement.conditions.keys() == {"Bool"}
        and statement.conditions["Bool"].keys() == {"aws:SecureTransport"}
        and str(statement.conditions["Bool"]["aws:SecureTransport"]).lower() in ("false", "['false']")
        for statement in iam.statements(policy.values["policy"])
    )


def bucket_is_written_once(stack: Stack) -> Iterator[Violation]:
    """A writer below the prefix of the records cannot write over one."""
    prefix = store_of(stack, "SILTSTONE_OBJECT_STORE_URL")[1]
    for bucket in stack.of("aws_s3_bucket"):
        policies = stack.for_bucket("aws_s3_bucket_policy", bucket)
        if not any(refuses_to_overwrite(policy, f"{bucket.values['arn']}/{prefix}/*") for policy in policies):
            remedy = (
                "deny s3:PutObject to all below the prefix where s3:if-none-match is null and"
                " s3:ObjectCreationOperation is true"
            )
            yield Violation(bucket, "the bucket's policy lets records be overwritten", remedy)


def refuses_to_overwrite(policy: Resource, objects: str) -> bool:
    return any(
        not statement.allows
        and "s3:PutObject" in statement.actions
        and "*" in {principal.removeprefix("AWS:") for principal in statement.principals}
        and objects in statement.resources
        # and under no other condition; without the second one, the parts of an upload would be refused too
        and statement.conditions
        == {"Null": {"s3:if-none-match": "true"}, "Bool": {"s3:ObjectCreationOperation": "true"}}
        for statement in iam.statements(policy.values["policy"])
    )


def bucket_forgets_what_is_deleted(stack: Stack) -> Iterator[Violation]:
    for bucket in stack.of("aws_s3_bucket"):
        rules = [
            rule
            for setting in stack.for_bucket("aws_s3_bucket_lifecycle_configuration", bucket)
            for rule in blocks(setting.values, "rule")
            if rule.get("status") == "Enabled"
        ]
        for name, what in (
            ("abort_incomplete_multipart_upload", "uploads that were given up"),
            ("noncurrent_version_expiration", "old versions of deleted objects"),
        ):
            if not any(is_for_all(rule) and any(map(ends, blocks(rule, name))) for rule in rules):
                message = f"no lifecycle rule removes {what}"
                yield Violation(
                    bucket, message, f"give an enabled rule of the bucket's lifecycle configuration a {name} block"
                )
        for rule in rules:
            if any(expiration.get("days") or expiration.get("date") for expiration in blocks(rule, "expiration")):
                message = f"lifecycle rule {rule.get('id')!r} deletes live objects by age, behind Siltstone's back"
                yield Violation(bucket, message, "set retention on topics; only Siltstone's janitor deletes")


def bucket_is_read_at_once(stack: Stack) -> Iterator[Violation]:
    """No lifecycle rule moves objects to a class in which a GET fails until they are restored."""
    for setting in stack.of("aws_s3_bucket_lifecycle_configuration"):
        for rule in blocks(setting.values, "rule"):
            for move in (*blocks(rule, "transition"), *blocks(rule, "noncurrent_version_transition")):
                if move.get("storage_class") in ARCHIVES:
                    message = f"lifecycle rule {rule.get('id')!r} moves objects to {move['storage_class']}"
                    remedy = "take a class that is read at once: STANDARD_IA, INTELLIGENT_TIERING, GLACIER_IR"
                    yield Violation(setting, message, remedy)


def is_for_all(rule: dict[str, Any]) -> bool:
    """Whether a lifecycle rule applies to every object: no prefix, tag or size narrows it."""
    return not rule.get("prefix") and not any(any(part.values()) for part in blocks(rule, "filter"))


def ends(block: dict[str, Any]) -> bool:
    """Whether the block makes its objects expire some day."""
    days = block.get("days_after_initiation") or block.get("noncurrent_days") or 0
    return 1 <= int(days) <= LIFECYCLE_DAYS_MAX and not block.get("newer_noncurrent_versions")


def database_is_private(stack: Stack) -> Iterator[Violation]:
    for database in stack.of("aws_db_instance"):
        values = database.values
        if values.get("publicly_accessible"):
            yield Violation(database, "the database is open to the internet", "set publicly_accessible = false")
        if values.get("storage_encrypted") is not True:
            yield Violation(database, "the database's storage is not encrypted", "set storage_encrypted = true")
        if not values.get("db_subnet_group_name"):
            yield Violation(database, "the database is not in the deployment's subnets", "set db_subnet_group_name")


def database_keeps_its_password_to_itself(stack: Stack) -> Iterator[Violation]:
    for database in stack.of("aws_db_instance"):
        if database.values.get("password"):
            message = "the database's password is plain text in the configuration and in Terraform's state"
            yield Violation(database, message, "leave password out and set manage_master_user_password = true")
        elif database.values.get("manage_master_user_password") is not True:
            yield Violation(
                database, "the database's password is not managed", "set manage_master_user_password = true"
            )


def database_wants_tls(stack: Stack) -> Iterator[Violation]:
    groups = {group.values.get("name"): group for group in stack.of("aws_db_parameter_group")}
    for database in stack.of("aws_db_instance"):
        group = groups.get(database.values.get("parameter_group_name"))
        forced = group is not None and any(
            one.get("name") == "rds.force_ssl" and one.get("value") == "1" for one in blocks(group.values, "parameter")
        )
        if not forced:
            message = "the database accepts connections without TLS"
            yield Violation(group or database, message, 'give its parameter group rds.force_ssl = "1"')


def database_outlives_a_mistake(stack: Stack) -> Iterator[Violation]:
    """Backups always; a second zone and protection from deletion in the example that is meant for production."""
    for database in stack.of("aws_db_instance"):
        if not database.values.get("backup_retention_period"):
            yield Violation(database, "the database has no backups", "set backup_retention_period to 1 or more")
        if stack.root.endswith("three_zones"):
            if database.values.get("multi_az") is not True:
                yield Violation(database, "the database is in one zone", "set multi_az = true")
            if database.values.get("deletion_protection") is not True:
                yield Violation(database, "the database can be deleted by mistake", "set deletion_protection = true")


def logs_end_some_day(stack: Stack) -> Iterator[Violation]:
    for group in stack.of("aws_cloudwatch_log_group"):
        if not group.values.get("retention_in_days"):
            yield Violation(group, "the log group keeps everything for ever", "set retention_in_days")


def disks_are_encrypted(stack: Stack) -> Iterator[Violation]:
    for template in stack.of("aws_launch_template"):
        for mapping in blocks(template.values, "block_device_mappings"):
            for disk in blocks(mapping, "ebs"):
                if str(disk.get("encrypted")).lower() != "true":
                    yield Violation(
                        template, "a disk of the launch template is not encrypted", "set encrypted = true in ebs"
                    )


def store_of(stack: Stack, variable_name: str) -> tuple[str, str]:
    """Bucket and prefix from the tasks' environment; ("", "") if no task has them."""
    for task in stack.of("aws_ecs_task_definition"):
        for container in container_definitions(task):
            for variable in cast("list[dict[str, str]]", container.get("environment") or []):
                found = STORE.match(variable["value"])
                if variable["name"] == variable_name and found:
                    return found[1], found[2]
    return "", ""


def container_definitions(task: Resource) -> list[dict[str, object]]:
    """The containers of an ECS task definition."""
    return json.loads(task.values["container_definitions"])
