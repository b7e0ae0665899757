"""Rules for the second day: what is heard of trouble, how passwords, schemas, hosts and logs get old, and who pays."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import parse_qs, urlsplit

import yaml

from infra.check import iam
from infra.check.rules.data import container_definitions
from infra.check.rules.identities import secret, variable
from infra.check.rules.network import containers
from infra.check.stack import Stack, Violation, blocks
from infra.check.terraform import Resource

ALERTS: Final = Path(__file__).parents[2] / "prometheus" / "alerts.yml"
# What must be told of, by the end of an alarm's name.
TOLD: Final = {
    "no-compactor": "that no compactor works",
    "no-merge": "that no merge is done",
    "l0-backlog": "that merging does not keep up",
    "catalogue-old": "that the catalogue in the bucket is old",
    "password-old": "that a password is old",
    "produce-errors-fast": "that produce fails",
    "produce-errors-slow": "that produce fails a little, for long",
    "group-lag": "that a group does not read",
    "agents-healthy": "that agents are not ready",
    "rollout-not-started": "that a migration could not be started",
}
FIGURES: Final = "SILTSTONE_LOG_FIGURES_INTERVAL_MS"
PROCESSES: Final = ("agent", "compactor")
FIELD: Final = re.compile(r"^\$\.(\w+)$")
ROLLOUT: Final = "SERVICE_DEPLOYMENT_IN_PROGRESS"
EVENTS: Final = "Service:events.amazonaws.com"  # is not known to take the condition
HOST_PARTS: Final = {"instance", "volume", "network-interface"}


def alarms_are_heard(stack: Stack) -> Iterator[Violation]:
    for alarm in stack.of("aws_cloudwatch_metric_alarm", "aws_cloudwatch_composite_alarm"):
        if not alarm.values.get("alarm_actions"):
            yield Violation(alarm, "nobody hears of the alarm", "give it alarm_actions: the topics of the operator")


def trouble_is_told(stack: Stack) -> Iterator[Violation]:
    alarms = [str(alarm.values.get("alarm_name")) for alarm in stack.of("aws_cloudwatch_metric_alarm")]
    for cluster in stack.of("aws_ecs_cluster"):
        for ending, what in TOLD.items():
            if not any(name.endswith(f"-{ending}") for name in alarms):
                yield Violation(cluster, f"no alarm tells {what}", f"make an alarm whose name ends with {ending}")


def alarms_have_their_figures(stack: Stack) -> Iterator[Violation]:
    """An alarm of Siltstone's own figures watches a metric that a filter makes of a log that a task writes them to."""
    groups = {str(group.values.get("name")) for group in stack.of("aws_cloudwatch_log_group")}
    made: set[tuple[str, str]] = set()
    for each in stack.of("aws_cloudwatch_log_metric_filter"):
        if each.values.get("log_group_name") not in groups:
            yield Violation(each, "the filter reads a log that is not made here", "name one of the log groups")
        for metric in blocks(each.values, "metric_transformation"):
            made.add((str(metric.get("namespace")), str(metric.get("name"))))
            field = FIELD.match(str(metric.get("value")))
            if field is None or f"$.{field[1]} = *" not in str(each.values.get("pattern")):
                remedy = "let the pattern ask for the field that is the metric's value"
                yield Violation(each, "the filter takes lines without its figure", remedy)
    for alarm in stack.of("aws_cloudwatch_metric_alarm"):
        for namespace, name in metrics_of(alarm):
            if not namespace.startswith("AWS/") and (namespace, name) not in made:
                message = f"the alarm watches {name} of {namespace}, which nothing writes"
                yield Violation(alarm, message, "give it a metric filter")
    for task, container in containers(stack):
        if container.get("command") in [[name] for name in PROCESSES] and variable(container, FIGURES) in ("", "0"):
            remedy = f"set {FIGURES}: alarms read them"
            yield Violation(task, f"container {container.get('name')} writes no figures into its log", remedy)


def metrics_of(alarm: Resource) -> Iterator[tuple[str, str]]:
    single = alarm.values.get("namespace"), alarm.values.get("metric_name")
    listed = [metric for query in blocks(alarm.values, "metric_query") for metric in blocks(query, "metric")]
    for namespace, name in [single, *((one.get("namespace"), one.get("metric_name")) for one in listed)]:
        if namespace:
            yield str(namespace), str(name)


def prometheus_has_the_rules(stack: Stack) -> Iterator[Violation]:
    wanted = {group["name"] for group in yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]}
    for workspace in stack.of("aws_prometheus_workspace"):
        has: set[str] = set()
        for each in stack.of("aws_prometheus_rule_group_namespace"):
            has |= {group["name"] for group in yaml.safe_load(str(each.values.get("data")))["groups"]}
        if missing := wanted - has:
            remedy = "make an aws_prometheus_rule_group_namespace of each group of infra/prometheus/alerts.yml"
            yield Violation(workspace, f"the workspace lacks alert rules: {', '.join(sorted(missing))}", remedy)
        managers = stack.of("aws_prometheus_alert_manager_definition")
        if not any("topic_arn" in str(manager.values.get("definition")) for manager in managers):
            yield Violation(workspace, "nobody hears of its alerts", "give it an alert manager that tells a topic")


def topics_are_written_by_this_account(stack: Stack) -> Iterator[Violation]:
    for policy in stack.of("aws_sns_topic_policy"):
        for statement in iam.statements(str(policy.values.get("policy"))):
            named = any("aws:SourceAccount" in keys for keys in statement.conditions.values())
            if statement.allows and not named and statement.principals != (EVENTS,):
                yield Violation(policy, "other accounts may publish alarms", "add a condition on aws:SourceAccount")


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
    """Where some resources carry the operator's tags, or a boundary, all do."""
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


def rollouts_migrate(stack: Stack) -> Iterator[Violation]:
    """AWS starts the migration whenever the agents' service is rolled out, with the image of the agents."""
    images = {str(each.get("image")) for _, each in containers(stack) if each.get("command") == ["agent"]}
    tasks = {str(task.values.get("arn")): task for task in stack.of("aws_ecs_task_definition")}
    services = [service for service in stack.of("aws_ecs_service") if runs_agents(service, tasks)]
    migrating: set[str] = set()
    for target in stack.of("aws_cloudwatch_event_target"):
        for ecs in blocks(target.values, "ecs_target"):
            task = tasks.get(str(ecs.get("task_definition_arn")))
            listed = container_definitions(task) if task is not None and not target.values.get("input") else []
            if any(cast("list[str]", each.get("command") or [""])[0] == "migrate" for each in listed):
                migrating.add(str(target.values.get("rule")))
                if {str(each.get("image")) for each in listed} != images:
                    message = "the migration is of another image than the agents"
                    yield Violation(target, message, "give both the same image")
    watched = ""
    for rule in stack.of("aws_cloudwatch_event_rule"):
        if str(rule.values.get("name")) in migrating and ROLLOUT in str(rule.values.get("event_pattern")):
            watched += str(rule.values["event_pattern"])
    for service in services:
        if (
            f":service/{str(service.values.get('cluster')).rsplit('/', 1)[-1]}/{service.values.get('name')}"
            not in watched
        ):
            remedy = "start the migration by an EventBridge rule on deployments of this service"
            yield Violation(service, "new agents wait for a migration that somebody must start", remedy)


def runs_agents(service: Resource, tasks: dict[str, Resource]) -> bool:
    task = tasks.get(str(service.values.get("task_definition")))
    return task is not None and any(each.get("command") == ["agent"] for each in container_definitions(task))


def restores_are_drilled(stack: Stack) -> Iterator[Violation]:
    drills = [
        target for target in stack.of("aws_cloudwatch_event_target") if '"drill"' in str(target.values.get("input"))
    ]
    timed = {
        str(r.values.get("name")) for r in stack.of("aws_cloudwatch_event_rule") if r.values.get("schedule_expression")
    }
    for cluster in stack.of("aws_ecs_cluster"):
        if not any(str(target.values.get("rule")) in timed for target in drills):
            yield Violation(cluster, "nobody tries whether the metadata can be rebuilt", "schedule a restore drill")
