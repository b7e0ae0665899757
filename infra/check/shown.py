"""The output of `terraform show -json`, of anybody's state or plan, in the form that the rules read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, cast

from infra.check.stack import Planned, Stack
from infra.check.terraform import Resource, resources_of

FORMAT: Final = ("format_version", "terraform_version")
OTHER_DEPLOYMENT: Final = "no aws_ecs_task_definition in it: is it Siltstone's?"


class NotShown(Exception):
    """The text is not what `terraform show -json` prints."""


def stack_of(text: str, name: str) -> Stack:
    """The stack in a state, or the one that a plan would leave. Raises NotShown."""
    try:
        told = json.loads(text)
    except ValueError as error:
        raise NotShown(f"{name} is no JSON ({error}): write it with terraform show -json") from error
    if not isinstance(told, dict) or not told.keys() >= set(FORMAT):
        raise NotShown(f"{name} is neither a state nor a plan: write it with terraform show -json")
    document = cast("dict[str, Any]", told)
    found = of_plan(document) if "planned_values" in document else of_values(document.get("values"))
    if not any(resource.type == "aws_ecs_task_definition" for resource in found):
        raise NotShown(f"{name} has {OTHER_DEPLOYMENT}")
    return Stack(name, tuple(found))


def of_values(values: Mapping[str, Any] | None) -> list[Resource]:
    return resources_of(values.get("root_module", {})) if values else []


def of_plan(document: Mapping[str, Any]) -> list[Resource]:
    """The planned resources, and the data that were read for the plan."""
    unknown = {one["address"]: one["change"].get("after_unknown") for one in document.get("resource_changes", [])}
    read = of_values(document.get("prior_state", {}).get("values"))
    planned = of_values(document["planned_values"])
    found = [one for one in read if one.type.startswith("data.")]
    for one in planned:
        if not one.type.startswith("data."):
            values = marked(one.values, unknown.get(one.address) or {}, one.address)
            found.append(Resource(one.address, one.type, one.name, one.module, values))
    return found


def marked(known: Mapping[str, Any], unknown: Mapping[str, Any], address: str) -> Planned:
    """The known values, with the names of those that are not known yet; blocks alike."""
    values = dict(known)
    lacking: set[str] = set()
    for name, what in unknown.items():
        blocks, inside = dictionaries(values.get(name)), dictionaries(what)
        if blocks and len(blocks) == len(inside):
            values[name] = [marked(*pair, f"{address}.{name}") for pair in zip(blocks, inside, strict=True)]
        elif says_unknown(what):
            lacking.add(name)
    return Planned(values, frozenset(lacking), address)


def dictionaries(value: object) -> list[dict[str, Any]]:
    """The blocks of a list of blocks; none if it is anything else."""
    listed = cast("list[object]", value) if isinstance(value, list) else []
    return cast("list[dict[str, Any]]", listed) if all(isinstance(one, dict) for one in listed) else []


def says_unknown(what: Any) -> bool:
    """Whether anything in it is not known."""
    if isinstance(what, dict):
        return any(says_unknown(one) for one in cast("dict[str, object]", what).values())
    if isinstance(what, list):
        return any(says_unknown(one) for one in cast("list[object]", what))
    return what is True
