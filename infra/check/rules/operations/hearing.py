"""Rules for who hears of trouble: topics and their subscribers, and managed Prometheus with its rules."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, cast

import yaml

from infra.check import iam
from infra.check.stack import Stack, Violation, blocks

ALERTS: Final = Path(__file__).parents[3] / "prometheus" / "alerts.yml"
ACCOUNT: Final = "aws:SourceAccount"
ALARMS: Final = "Service:cloudwatch.amazonaws.com"
EVENTS: Final = "Service:events.amazonaws.com"  # is not known to take the condition


def topics_are_written_by_this_account(stack: Stack) -> Iterator[Violation]:
    for policy in stack.of("aws_sns_topic_policy"):
        heard: set[str] = set()
        for statement in iam.statements(str(policy.values.get("policy"))):
            own = iam.several(statement.conditions.get("StringEquals", {}).get(ACCOUNT)) == (stack.account,)
            if statement.allows and not own and statement.principals != (EVENTS,):
                remedy = f"add a condition: {ACCOUNT} StringEquals this account, and no other"
                yield Violation(policy, "other accounts may publish alarms", remedy)
            elif statement.allows:
                heard |= {*statement.principals}
        if lacking := {ALARMS, EVENTS} - heard:
            names = ", ".join(sorted(one.removeprefix("Service:") for one in lacking))
            yield Violation(policy, f"the topic takes nothing from {names}", "let it publish, for this account")


def topics_reach_somebody(stack: Stack) -> Iterator[Violation]:
    subscribed = {str(one.values.get("topic_arn")) for one in stack.of("aws_sns_topic_subscription")}
    for topic in stack.of("aws_sns_topic"):
        if topic.values.get("arn") not in subscribed:
            message = "nobody is subscribed to the topic: alarms ring, and no person hears of them"
            remedy = "set monitoring.alarm_emails; or monitoring.alarm_topic_arns, and subscribe to your own topic"
            yield Violation(topic, message, remedy)


def rules_of(groups: object) -> dict[str, set[str]]:
    """The names of the rules of each group."""
    listed = cast("list[dict[str, Any]]", groups or [])
    return {str(group["name"]): {str(one.get("alert")) for one in blocks(group, "rules")} for group in listed}


def prometheus_has_the_rules(stack: Stack) -> Iterator[Violation]:
    wanted = rules_of(yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"])
    for workspace in stack.of("aws_prometheus_workspace"):
        has: dict[str, set[str]] = {}
        for each in stack.of("aws_prometheus_rule_group_namespace"):
            has |= rules_of(yaml.safe_load(str(each.values.get("data")))["groups"])
        for group, alerts in wanted.items():
            if missing := alerts - has.get(group, set()):
                what = "all" if missing == alerts else ", ".join(sorted(missing))
                remedy = "make an aws_prometheus_rule_group_namespace of each group of infra/prometheus/alerts.yml"
                yield Violation(workspace, f"the workspace lacks alert rules of {group}: {what}", remedy)


def alerts_are_heard(stack: Stack) -> Iterator[Violation]:
    """Managed Prometheus tells a topic of its alerts: each route leads to a receiver, and the first one to a topic."""
    managers = stack.of("aws_prometheus_alert_manager_definition")
    for workspace in stack.of("aws_prometheus_workspace") if not managers else ():
        yield Violation(workspace, "nobody hears of its alerts", "give it an alert manager that tells a topic")
    for manager in managers:
        config: dict[str, Any] = yaml.safe_load(
            yaml.safe_load(str(manager.values.get("definition")))["alertmanager_config"]
        )
        topics = {
            str(receiver.get("name")): [one.get("topic_arn") for one in blocks(receiver, "sns_configs")]
            for receiver in blocks(config, "receivers")
        }
        [first, *others] = [str(route.get("receiver")) for route in routes(config.get("route", {}))]
        for name in (first, *others):
            if name not in topics:
                message = f"alerts go to the receiver {name}, which is not there: nobody hears of them"
                yield Violation(manager, message, f"name one of these: {', '.join(topics) or 'none is there'}")
        if first in topics and not any(topics[first]):
            yield Violation(manager, "nobody hears of its alerts", "give the receiver sns_configs with a topic_arn")


def routes(route: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A route and those below it that name a receiver of their own."""
    yield route
    for below in blocks(route, "routes"):
        yield from (one for one in routes(below) if "receiver" in one)
