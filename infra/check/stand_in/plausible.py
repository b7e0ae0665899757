"""Answers of the stand-in provider in place of those that the real one gets from AWS or computes.

They are fixed values of the right form: an account that does not exist, a region, identifiers made from the
configuration. The product reads none of them. The policy scan relies on a bucket's ARN naming the bucket.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Final, cast

from infra.check import iam
from infra.check.stand_in.schema import Block, Type
from infra.check.stand_in.values import UNKNOWN, Unknown, Value

ACCOUNT: Final = "123456789012"
REGION: Final = "eu-central-1"
ZONES: Final = ["eu-central-1a", "eu-central-1b", "eu-central-1c"]
ARN_SERVICES: Final = {
    "aws_appautoscaling": "autoscaling",
    "aws_autoscaling": "autoscaling",
    "aws_cloudwatch_log": "logs",
    "aws_cloudwatch_metric": "cloudwatch",
    "aws_db": "rds",
    "aws_ecs": "ecs",
    "aws_emrserverless": "emr-serverless",
    "aws_iam": "iam",
    "aws_lb": "elasticloadbalancing",
    "aws_prometheus": "aps",
    "aws_secretsmanager": "secretsmanager",
    "aws_ssm": "ssm",
}
DATA_SOURCES: Final[dict[str, dict[str, Value]]] = {
    "aws_availability_zones": {
        "names": cast(Value, ZONES),
        "zone_ids": cast(Value, ["euc1-az2", "euc1-az3", "euc1-az1"]),
        "group_names": cast(Value, [REGION]),
    },
    "aws_caller_identity": {
        "account_id": ACCOUNT,
        "arn": f"arn:aws:iam::{ACCOUNT}:user/somebody",
        "id": ACCOUNT,
        "user_id": "AIDASOMEBODY",
    },
    "aws_partition": {
        "partition": "aws",
        "dns_suffix": "amazonaws.com",
        "id": "aws",
        "reverse_dns_prefix": "com.amazonaws",
    },
    "aws_region": {
        "region": REGION,
        "name": REGION,
        "id": REGION,
        "description": "Europe (Frankfurt)",
        "endpoint": f"ec2.{REGION}.amazonaws.com",
    },
    "aws_ssm_parameter": {
        "value": "ami-0123456789abcdef0",
        "insecure_value": "ami-0123456789abcdef0",
        "type": "String",
        "version": 1,
    },
    "aws_vpc": {"cidr_block": "10.0.0.0/16", "id": "vpc-0123456789abcdef0"},
    "aws_prefix_list": {"id": "pl-6ea54007"},
    "aws_ec2_managed_prefix_list": {"id": "pl-6ea54007"},
}


def known(value: Value) -> bool:
    """Whether nothing in it is UNKNOWN."""
    if isinstance(value, dict):
        return all(known(item) for item in value.values())
    if isinstance(value, list):
        return all(known(item) for item in value)
    return not isinstance(value, Unknown)


def shown(value: Value) -> object:
    if isinstance(value, dict):
        return {key: shown(item) for key, item in value.items()}
    return [shown(item) for item in value] if isinstance(value, list) else str(value)


def identity(type_name: str, config: dict[str, Value]) -> str:
    """An identity that is the same for the same configuration, so that two plans of it agree."""
    text = json.dumps([type_name, shown(config)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:17]


def name_of(type_name: str, config: dict[str, Value]) -> str:
    for argument in (
        "name",
        "bucket",
        "identifier",
        "family",
        "alarm_name",
        "name_prefix",
        "bucket_prefix",
        "identifier_prefix",
    ):
        given = config.get(argument)
        if isinstance(given, str) and given:
            return given if not argument.endswith("prefix") else given + identity(type_name, config)[:8]
    return f"{type_name.removeprefix('aws_').replace('_', '-')}-{identity(type_name, config)}"


def arn(type_name: str, config: dict[str, Value]) -> str:
    name = name_of(type_name, config)
    kind = type_name.removeprefix("aws_").split("_", 1)[-1].replace("_", "-")
    if type_name == "aws_s3_bucket":
        return f"arn:aws:s3:::{name}"
    if type_name == "aws_iam_role":
        return f"arn:aws:iam::{ACCOUNT}:role/{name}"
    if type_name == "aws_cloudwatch_log_group":
        return f"arn:aws:logs:{REGION}:{ACCOUNT}:log-group:{name}"
    if type_name == "aws_ecs_task_definition":
        return f"arn:aws:ecs:{REGION}:{ACCOUNT}:task-definition/{name}:1"
    if type_name == "aws_secretsmanager_secret":
        return f"arn:aws:secretsmanager:{REGION}:{ACCOUNT}:secret:{name}-AbCdEf"
    if type_name == "aws_sns_topic":
        return f"arn:aws:sns:{REGION}:{ACCOUNT}:{name}"
    service = next((service for prefix, service in ARN_SERVICES.items() if type_name.startswith(prefix)), "ec2")
    return f"arn:aws:{service}:{'' if service == 'iam' else REGION}:{ACCOUNT}:{kind}/{name}"


def of_type(kind: Type, type_name: str, attribute: str, config: dict[str, Value]) -> Value:
    """A value for a computed attribute."""
    if kind == "number":
        return 5432 if attribute == "port" else 1
    if kind == "bool":
        return False
    if kind == "string":
        return text_value(type_name, attribute, config)
    assert isinstance(kind, tuple)
    outer, inner = kind
    if outer == "object":
        assert isinstance(inner, dict)
        return {name: of_type(part, type_name, name, config) for name, part in inner.items()}
    if outer == "map":
        return {}
    assert not isinstance(inner, dict)
    # One element if the elements are objects, because `master_user_secret[0].secret_arn` is read; else none.
    return [of_type(inner, type_name, attribute, config)] if isinstance(inner, tuple) else []


def text_value(type_name: str, attribute: str, config: dict[str, Value]) -> str:
    name = name_of(type_name, config)
    if attribute == "region":
        return REGION
    if attribute == "secret_arn":
        return f"arn:aws:secretsmanager:{REGION}:{ACCOUNT}:secret:rds!db-{identity(type_name, config)}"
    if attribute in ("id", "arn") and type_name == "aws_emrserverless_application":
        number = f"00f{identity(type_name, config)[:13]}"
        return number if attribute == "id" else f"arn:aws:emr-serverless:{REGION}:{ACCOUNT}:/applications/{number}"
    if attribute == "arn_suffix":
        return f"{type_name.removeprefix('aws_lb_').removeprefix('aws_')}/{name}"
    if attribute in ("id", "bucket", "identifier", "name", "resource_id") and type_name.startswith(
        ("aws_s3", "aws_iam", "aws_db", "aws_cloudwatch")
    ):
        return name
    if (
        attribute == "arn"
        or attribute.endswith("_arn")
        or (attribute == "id" and type_name.startswith(("aws_lb", "aws_ecs")))
    ):
        return arn(type_name, config)
    if attribute in ("address", "dns_name", "endpoint"):
        return f"{name}.{REGION}.example.internal"
    if attribute == "prometheus_endpoint":
        return f"https://aps-workspaces.{REGION}.amazonaws.com/workspaces/{name}/"
    if attribute in ("owner_id", "account_id"):
        return ACCOUNT
    return f"{type_name.removeprefix('aws_').replace('_', '-')}-{identity(type_name, config)}"


def planned(block: Block, config: dict[str, Value]) -> dict[str, Value]:
    """The real provider's plan: computed attributes that were not given are unknown until the apply."""
    out = dict(config)
    for name, attribute in block.attributes.items():
        if attribute.computed and out.get(name) is None:
            out[name] = UNKNOWN
    return nested(block, out, planned)


def applied(block: Block, type_name: str, plan: dict[str, Value]) -> dict[str, Value]:
    """The plan with a plausible value for everything unknown."""
    told = {name: value for name, value in plan.items() if known(value)}

    def filled(inner: Block, values: dict[str, Value]) -> dict[str, Value]:
        out = dict(values)
        for name, attribute in inner.attributes.items():
            if known(out.get(name)):
                continue
            if attribute.optional and inner is not block:
                out[name] = None  # what a block leaves out, AWS leaves out too
            elif attribute.optional and collects(attribute.type):
                out[name] = []
            else:
                out[name] = of_type(attribute.type, type_name, name, told)
        return nested(inner, out, filled)

    out = filled(block, plan)
    if "tags_all" in block.attributes:
        out["tags_all"] = out.get("tags") or {}
    return out


def collects(kind: Type) -> bool:
    return isinstance(kind, tuple) and kind[0] in ("list", "set")


def nested(
    block: Block, values: dict[str, Value], change: Callable[[Block, dict[str, Value]], dict[str, Value]]
) -> dict[str, Value]:
    """The values with this change made in every nested block."""
    out = dict(values)
    for name, item in block.blocks.items():
        value = out.get(name)
        if isinstance(value, dict):
            out[name] = change(item.block, value)
        elif isinstance(value, list):
            out[name] = [change(item.block, one) if isinstance(one, dict) else one for one in value]
    return out


def data_source(block: Block, type_name: str, config: dict[str, Value]) -> dict[str, Value]:
    """The state of a data source that was read; Terraform reads none whose arguments are unknown."""
    answer = {name: value for name, value in DATA_SOURCES.get(type_name, {}).items() if config.get(name) is None}
    if type_name == "aws_iam_policy_document":
        document = iam.rendered(config)
        answer = {"json": document, "minified_json": json.dumps(json.loads(document), separators=(",", ":"))}
    given = {**config, **{name: value for name, value in answer.items() if name in block.attributes}}
    return applied(block, type_name, planned(block, given))
