"""Rules for what EventBridge starts by itself, migrations and restore drills, and for who hears if one fails."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final, cast

from infra.check import iam
from infra.check.rules.access import granted
from infra.check.rules.data import container_definitions
from infra.check.rules.network import containers
from infra.check.rules.operations.patterns import takes
from infra.check.stack import Stack, Violation, blocks
from infra.check.terraform import Resource

TOPIC: Final = ":sns:"
ROLLOUT: Final = {
    "source": "aws.ecs",
    "detail-type": "ECS Deployment State Change",
    "detail": {"eventType": "INFO", "eventName": "SERVICE_DEPLOYMENT_IN_PROGRESS"},
}
TASK: Final = {"source": "aws.ecs", "detail-type": "ECS Task State Change"}
WELL: Final = {"stopCode": "EssentialContainerExited", "containers": [{"lastStatus": "STOPPED", "exitCode": 0}]}
# What ECS says of a task that did not do its work. The second has no exit code: its image or secret could not be read.
BADLY: Final = (
    {"stopCode": "EssentialContainerExited", "containers": [{"lastStatus": "STOPPED", "exitCode": 1}]},
    {"stopCode": "TaskFailedToStart", "containers": [{"lastStatus": "STOPPED"}]},
)


def rules_of_events_act(stack: Stack) -> Iterator[Violation]:
    targets = {str(target.values.get("rule")) for target in stack.of("aws_cloudwatch_event_target")}
    for rule in stack.of("aws_cloudwatch_event_rule"):
        name = str(rule.values.get("name"))
        if rule.values.get("state") == "DISABLED":
            yield Violation(rule, f"{name} is switched off: what it starts or tells never happens", "leave state out")
        if name not in targets:
            remedy = "give it an aws_cloudwatch_event_target"
            yield Violation(rule, f"{name} has no target: it starts nothing and tells nobody", remedy)


def taking(stack: Stack, event: dict[str, Any]) -> dict[str, Resource]:
    """The rules whose pattern takes this event, by name."""
    rules = [rule for rule in stack.of("aws_cloudwatch_event_rule") if rule.values.get("event_pattern")]
    return {str(rule.values["name"]): rule for rule in rules if takes(json.loads(rule.values["event_pattern"]), event)}


def rollouts_migrate(stack: Stack) -> Iterator[Violation]:
    """AWS starts the migration whenever the agents' service is rolled out, with the image of the agents."""
    images = {str(each.get("image")) for _, each in containers(stack) if each.get("command") == ["agent"]}
    tasks = {str(task.values.get("arn")): task for task in stack.of("aws_ecs_task_definition")}
    migrating: set[str] = set()
    for target in stack.of("aws_cloudwatch_event_target"):
        for ecs in blocks(target.values, "ecs_target"):
            task = tasks.get(str(ecs.get("task_definition_arn")))
            listed = container_definitions(task) if task is not None and not target.values.get("input") else []
            if any(first_word(each.get("command")) == "migrate" for each in listed):
                migrating.add(str(target.values.get("rule")))
                if {str(each.get("image")) for each in listed} != images:
                    message = "the migration is of another image than the agents"
                    yield Violation(target, message, "give both the same image")
    for service in stack.of("aws_ecs_service"):
        if runs_agents(service, tasks) and not migrating & taking(stack, rollout_of(service)).keys():
            remedy = "start the migration by an EventBridge rule on deployments of this service"
            yield Violation(service, "new agents wait for a migration that somebody must start", remedy)


def runs_agents(service: Resource, tasks: dict[str, Resource]) -> bool:
    task = tasks.get(str(service.values.get("task_definition")))
    return task is not None and any(each.get("command") == ["agent"] for each in container_definitions(task))


def rollout_of(service: Resource) -> dict[str, Any]:
    """The event of ECS when it begins to roll out the service."""
    arn = f"{str(service.values.get('cluster')).replace(':cluster/', ':service/')}/{service.values.get('name')}"
    return {**ROLLOUT, "resources": [arn]}


def first_word(command: object) -> str:
    return str([*cast("list[object]", command or []), ""][0])


def restores_are_drilled(stack: Stack) -> Iterator[Violation]:
    timed = {
        str(r.values.get("name")) for r in stack.of("aws_cloudwatch_event_rule") if r.values.get("schedule_expression")
    }
    drills = [
        target
        for target in stack.of("aws_cloudwatch_event_target")
        if str(target.values.get("rule")) in timed and first_word(command_of(target)) == "drill"
    ]
    for cluster in stack.of("aws_ecs_cluster"):
        if not drills:
            yield Violation(cluster, "nobody tries whether the metadata can be rebuilt", "schedule a restore drill")


def command_of(target: Resource) -> object:
    """The words that a target gives its task; None: those of the task definition."""
    given: dict[str, list[dict[str, object]]] = json.loads(target.values.get("input") or "{}")
    listed = given.get("containerOverrides", []) if blocks(target.values, "ecs_target") else []
    return next((each.get("command") for each in listed), None)


def failures_are_told(stack: Stack) -> Iterator[Violation]:
    """A topic hears of a task that AWS started and that failed; no topic hears of one that ended well."""
    told = {
        str(target.values.get("rule"))
        for target in stack.of("aws_cloudwatch_event_target")
        if TOPIC in str(target.values.get("arn"))
    }
    for target in stack.of("aws_cloudwatch_event_target"):
        if not blocks(target.values, "ecs_target"):
            continue
        rule = str(target.values.get("rule"))
        if not all(told & taking(stack, ended(target, how)).keys() for how in BADLY):
            message = f"nobody hears of a task of the rule {rule} that fails, or that cannot begin"
            yield Violation(target, message, "tell a topic of ECS Task State Changes to STOPPED: upkeep/alarms.tf")
        for name, teller in taking(stack, ended(target, WELL)).items():
            if name in told:
                message = f"{name} tells of tasks that ended well: nobody will heed it"
                yield Violation(teller, message, "let its pattern ask for an exit code that is not 0")


def ended(target: Resource, how: dict[str, Any]) -> dict[str, Any]:
    """The event of ECS when a task ends that EventBridge started."""
    started_by = f"events-rule/{target.values.get('rule')}"
    return {
        **TASK,
        "detail": {"clusterArn": target.values.get("arn"), "lastStatus": "STOPPED", "startedBy": started_by, **how},
    }


def tasks_are_started_in_this_cluster(stack: Stack) -> Iterator[Violation]:
    """A right to start tasks that names a cluster names the one in which EventBridge is to start them."""
    started = {
        str(target.values.get("arn"))
        for target in stack.of("aws_cloudwatch_event_target")
        if blocks(target.values, "ecs_target")
    }
    for policy, _, statement in granted(stack):
        for keys in statement.conditions.values() if "ecs:RunTask" in statement.actions else ():
            clusters = iam.several(keys.get("ecs:cluster"))
            if clusters and not started & {*clusters}:
                message = f"EventBridge may start tasks in {', '.join(clusters)} alone: no migration is ever started"
                yield Violation(policy, message, "name the cluster of the targets in the condition on ecs:cluster")
