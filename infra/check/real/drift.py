"""Changes that a second plan shows, though nobody changed anything in between.

A configuration that a plan never leaves alone is a mistake: AWS writes a value otherwise than we do. But moto, which
answers in place of AWS, forgets some of what it was told. What it forgets is listed here, and does not count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

RULE: Final = {"description"}  # of a rule between two groups
FORGOTTEN: Final[Mapping[str, set[str]]] = {
    "aws_autoscaling_group": {"capacity_reservation_specification", "launch_template"},
    "aws_db_parameter_group": {"parameter"},
    "aws_ecs_service": {
        "availability_zone_rebalancing",
        "capacity_provider_strategy",
        "deployment_controller",
        "health_check_grace_period_seconds",
        "tags",
    },
    "aws_emrserverless_application": {"architecture"},
    "aws_launch_template": {"tag_specifications"},
    "aws_vpc_security_group_egress_rule": RULE,
    "aws_vpc_security_group_ingress_rule": RULE,
}


def changes(plan: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """(address, attributes that would change) of a plan as Terraform shows it in JSON, without what moto forgot."""
    for resource in plan.get("resource_changes", []):
        if resource["mode"] != "managed" or resource["change"]["actions"] == ["no-op"]:
            continue
        left = differing(resource["change"]) - FORGOTTEN.get(resource["type"], set())
        if left:
            yield resource["address"], sorted(left)


def differing(change: Mapping[str, Any]) -> set[str]:
    """The attributes that would have another value. One that will only be known after the apply counts if no other
    differs: else it follows from that.
    """
    before: Mapping[str, Any] = change["before"] or {}
    after: Mapping[str, Any] = change["after"] or {}
    unknown: Mapping[str, Any] = change.get("after_unknown") or {}
    names = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    known = {name for name in names if unknown.get(name) is not True}
    return known or names
