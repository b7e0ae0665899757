"""Rules for what gets old: passwords, Postgres, hosts and their logs; and for who pays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, cast
from urllib.parse import parse_qs, urlsplit

from infra.check.rules.identities import PROCESSES, secret, variable
from infra.check.rules.network import containers
from infra.check.stack import Stack, Violation, blocks

HOST_PARTS: Final = {"instance", "volume", "network-interface"}


def passwords_change_under_running_tasks(stack: Stack) -> Iterator[Violation]:
    for task, container in containers(stack):
        if container.get("command") not in [[name] for name in PROCESSES]:
            continue
        query = parse_qs(urlsplit(variable(container, "SILTSTONE_METADATA_URL")).query)
        if secret(container, "PGPASSWORD") or not query.get("password_secret"):
            message = (
                f"container {container.get('name')} reads its password of Postgres when it starts, and never again"
            )
            yield Violation(task, message, "name the secret by password_secret in metadata.url")


def database_is_left_in_peace(stack: Stack) -> Iterator[Violation]:
    groups = {str(group.values.get("name")) for group in stack.of("aws_cloudwatch_log_group")}
    for database in stack.of("aws_db_instance"):
        values = database.values
        if values.get("auto_minor_version_upgrade") is not False:
            remedy = "set auto_minor_version_upgrade = false, and write new versions into engine_version"
            yield Violation(database, "RDS upgrades Postgres by itself", remedy)
        if values.get("apply_immediately"):
            remedy = "leave apply_immediately out: changes wait for the window"
            yield Violation(database, "changes restart Postgres at once", remedy)
        if values.get("performance_insights_enabled") is not True:
            message = "nobody can see what slow commits waited for"
            yield Violation(database, message, "set performance_insights_enabled = true")
        for log in cast("list[str]", values.get("enabled_cloudwatch_logs_exports") or []):
            if f"/aws/rds/instance/{values.get('identifier')}/{log}" not in groups:
                remedy = "make the log group /aws/rds/instance/NAME/LOG with a retention"
                yield Violation(database, f"the log {log} of Postgres is kept for ever", remedy)


def hosts_are_replaced_and_go(stack: Stack) -> Iterator[Violation]:
    for group in stack.of("aws_autoscaling_group"):
        if not blocks(group.values, "instance_refresh"):
            remedy = "give it an instance_refresh: a new image of the system reaches no host otherwise"
            yield Violation(group, "hosts are never replaced", remedy)
        unprotected = all(not one.values.get("deletion_protection") for one in stack.of("aws_db_instance"))
        if unprotected and group.values.get("force_delete") is not True:
            remedy = "set force_delete where deletion_protection is false"
            yield Violation(group, "`terraform destroy` waits for hosts that nobody ends", remedy)
    for template in stack.of("aws_launch_template"):
        tagged = {str(one.get("resource_type")) for one in blocks(template.values, "tag_specifications")}
        if missing := HOST_PARTS - tagged:
            message = f"nobody can tell what these belong to: {', '.join(sorted(missing))}"
            yield Violation(template, message, "give it tag_specifications for them")


def everything_is_tagged_and_bounded(stack: Stack) -> Iterator[Violation]:
    """All resources carry the operator's tags, or a boundary, if some do."""
    everything = list(stack.all())
    wanted = {
        name
        for one in stack.of("aws_ecs_cluster")
        for name in cast("dict[str, Any]", one.values.get("tags") or {})
        if name != "Name"
    }
    for resource in everything:
        if "tags" not in resource.values or resource.type.startswith("data."):
            continue
        if missing := wanted - (cast("dict[str, Any]", resource.values["tags"] or {}).keys()):
            yield Violation(resource, f"it lacks the tags {', '.join(sorted(missing))}", "set tags = var.tags")
    roles = stack.of("aws_iam_role")
    if any(role.values.get("permissions_boundary") for role in roles):
        for role in roles:
            if not role.values.get("permissions_boundary"):
                remedy = "set permissions_boundary = var.permissions_boundary"
                yield Violation(role, "the role has no boundary, though others have", remedy)
