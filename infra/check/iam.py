"""IAM policy documents: the document that the data source `aws_iam_policy_document` makes of its statements, and the
rights that a policy gives.

The stand-in provider answers the data source with the real one's result for the same arguments, so that the policy scan
reads the very documents that would be attached.
"""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from infra.check.stand_in.values import Value


def objects(value: object) -> list[dict[str, Any]]:
    return cast("list[dict[str, Any]]", value or [])


def shortened(values: list[str]) -> str | list[str]:
    # In reverse order, as the provider writes lists; a single value stands alone.
    return values[0] if len(values) == 1 else sorted(values, reverse=True)


def rendered_statement(statement: dict[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    if statement.get("sid"):
        out["Sid"] = statement["sid"]
    out["Effect"] = statement.get("effect") or "Allow"
    for argument, name in (
        ("actions", "Action"),
        ("not_actions", "NotAction"),
        ("resources", "Resource"),
        ("not_resources", "NotResource"),
    ):
        if statement.get(argument):
            out[name] = shortened(statement[argument])
    for argument, name in (("principals", "Principal"), ("not_principals", "NotPrincipal")):
        principals: dict[str, Any] = {}
        for principal in objects(statement.get(argument)):
            principals[principal["type"]] = shortened(principal["identifiers"])
        if principals == {"*": "*"}:
            out[name] = "*"
        elif principals:
            out[name] = principals
    conditions: dict[str, Any] = {}
    for condition in objects(statement.get("condition")):
        conditions.setdefault(condition["test"], {})[condition["variable"]] = shortened(condition["values"])
    if conditions:
        out["Condition"] = conditions
    return out


def rendered(config: dict[str, Value]) -> str:
    """The document as JSON, statements in order. Sources come first, overrides replace statements of the same Sid, as
    the provider does."""
    statements: list[dict[str, Any]] = []
    for source in cast("list[str]", config.get("source_policy_documents") or []):
        statements += json.loads(source).get("Statement", [])
    statements += [
        rendered_statement(statement) for statement in cast("list[dict[str, Any]]", config.get("statement") or [])
    ]
    for override in cast("list[str]", config.get("override_policy_documents") or []):
        for statement in json.loads(override).get("Statement", []):
            statements = [one for one in statements if not statement.get("Sid") or one.get("Sid") != statement["Sid"]]
            statements.append(statement)
    document: dict[str, Any] = {"Version": config.get("version") or "2012-10-17"}
    if config.get("policy_id"):
        document["Id"] = config["policy_id"]
    return json.dumps({**document, "Statement": statements}, indent=2)


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement of a policy, every part a tuple."""

    sid: str
    allows: bool
    actions: tuple[str, ...]
    not_actions: tuple[str, ...]
    resources: tuple[str, ...]
    not_resources: tuple[str, ...]
    principals: tuple[str, ...]  # "*", "Service:ecs-tasks.amazonaws.com", "AWS:arn:..."
    not_principals: tuple[str, ...]
    conditions: dict[str, dict[str, Any]]


def several(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    return tuple(str(item) for item in cast("list[object]", value)) if isinstance(value, list) else (str(value),)


def principals_of(raw: object) -> tuple[str, ...]:
    if not isinstance(raw, dict):
        return several(raw)
    pairs = cast("dict[str, object]", raw).items()
    return tuple("*" if name == "*" else f"{kind}:{name}" for kind, names in pairs for name in several(names))


def statements(document: str) -> Iterator[Statement]:
    """The statements of a policy. Raises ValueError if the text is not a policy document."""
    listed: object = json.loads(document).get("Statement")
    alone = isinstance(listed, dict)
    for one in [cast("dict[str, Any]", listed)] if alone else objects(listed):
        yield Statement(
            sid=str(one.get("Sid", "")),
            allows=one.get("Effect") == "Allow",
            actions=several(one.get("Action")),
            not_actions=several(one.get("NotAction")),
            resources=several(one.get("Resource")),
            not_resources=several(one.get("NotResource")),
            principals=principals_of(one.get("Principal")),
            not_principals=principals_of(one.get("NotPrincipal")),
            conditions=one.get("Condition", {}),
        )


def is_wide(resource: str) -> bool:
    """Whether a resource is more than one bucket, or more than one kind of thing of one service."""
    parts = resource.split(":", 5)
    if len(parts) < 6:
        return "*" in resource or "?" in resource
    service, name = parts[2], parts[5]
    first = name.split("/")[0] if service == "s3" else name[:1]
    return any(sign in service + first for sign in "*?")


def covers(pattern: str, action: str) -> bool:
    """Whether an action as written in a policy, with its `*` and `?`, includes this one."""
    # IAM ignores case and knows no sets in brackets, so the bracket is escaped for fnmatch.
    return fnmatch.fnmatchcase(action.lower(), pattern.lower().replace("[", "[[]"))
