"""Values that the provider refuses before it asks AWS, though the schema's types allow them.

Only for arguments that our configuration uses; each list follows the provider's documentation. Values that are not
known yet are not judged. A path is the argument's name with those of the blocks around it: `health_check.protocol`.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, cast

from infra.check.stand_in.values import Unknown, Value

ON_OFF: Final = ("ENABLED", "DISABLED")
ENABLED: Final = ("Enabled", "Disabled")
CHOICES: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    "aws_appautoscaling_policy": {"policy_type": ("StepScaling", "TargetTrackingScaling", "PredictiveScaling")},
    "aws_cloudwatch_metric_alarm": {
        "comparison_operator": (
            "GreaterThanOrEqualToThreshold", "GreaterThanThreshold", "LessThanThreshold", "LessThanOrEqualToThreshold",
            "LessThanLowerOrGreaterThanUpperThreshold", "LessThanLowerThreshold", "GreaterThanUpperThreshold",
        ),
        "statistic": ("SampleCount", "Average", "Sum", "Minimum", "Maximum"),
        "treat_missing_data": ("missing", "ignore", "breaching", "notBreaching"),
    },
    "aws_db_instance": {"storage_type": ("standard", "gp2", "gp3", "io1", "io2")},
    "aws_db_parameter_group": {"parameter.apply_method": ("immediate", "pending-reboot")},
    "aws_ecs_service": {
        "availability_zone_rebalancing": ON_OFF,
        "launch_type": ("EC2", "FARGATE", "EXTERNAL"),
        "propagate_tags": ("SERVICE", "TASK_DEFINITION", "NONE"),
        "scheduling_strategy": ("REPLICA", "DAEMON"),
    },
    "aws_ecs_task_definition": {
        "network_mode": ("bridge", "host", "awsvpc", "none"),
        "requires_compatibilities": ("EC2", "FARGATE", "EXTERNAL"),
        "runtime_platform.cpu_architecture": ("X86_64", "ARM64"),
    },
    "aws_emrserverless_application": {"architecture": ("ARM64", "X86_64")},
    "aws_lb": {"load_balancer_type": ("application", "network", "gateway"), "ip_address_type": ("ipv4", "dualstack")},
    "aws_lb_listener": {"protocol": ("HTTP", "HTTPS", "TCP", "TLS", "UDP", "TCP_UDP")},
    "aws_lb_target_group": {
        "target_type": ("instance", "ip", "lambda", "alb"),
        "protocol": ("HTTP", "HTTPS", "TCP", "TLS", "UDP", "TCP_UDP", "GENEVE"),
        "health_check.protocol": ("HTTP", "HTTPS", "TCP"),
    },
    "aws_s3_bucket_lifecycle_configuration": {"rule.status": ENABLED},
    "aws_s3_bucket_ownership_controls": {
        "rule.object_ownership": ("BucketOwnerPreferred", "ObjectWriter", "BucketOwnerEnforced")
    },
    "aws_s3_bucket_server_side_encryption_configuration": {
        "rule.apply_server_side_encryption_by_default.sse_algorithm": ("AES256", "aws:kms", "aws:kms:dsse")
    },
    "aws_s3_bucket_versioning": {"versioning_configuration.status": (*ENABLED, "Suspended")},
    "aws_vpc_endpoint": {"vpc_endpoint_type": ("Gateway", "GatewayLoadBalancer", "Interface")},
}  # fmt: skip
NAMES: Final = {
    ("aws_db_instance", "identifier"): (
        r"(?!.*--)[a-z][a-z0-9-]{0,61}[a-z0-9]",
        "1 to 63 lower-case letters, digits and single hyphens",
    ),
    ("aws_ecs_service", "name"): (r"[A-Za-z0-9_-]{1,255}", "up to 255 letters, digits, _ and -"),
    ("aws_iam_role", "name"): (r"[\w+=,.@-]{1,64}", "up to 64 characters"),
    ("aws_iam_role_policy", "name"): (r"[\w+=,.@-]{1,128}", "up to 128 characters"),
    ("aws_lb", "name"): (
        r"(?!internal-)[A-Za-z0-9](?:[A-Za-z0-9-]{0,30}[A-Za-z0-9])?",
        "up to 32 letters, digits and hyphens",
    ),
    ("aws_lb_target_group", "name"): (
        r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,30}[A-Za-z0-9])?",
        "up to 32 letters, digits and hyphens",
    ),
    ("aws_s3_bucket", "bucket"): (
        r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]",
        "3 to 63 lower-case letters, digits, dots and hyphens",
    ),
}
RETENTION_DAYS: Final = (
    0, 1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096, 1827, 2192, 2557, 2922, 3288, 3653,
)  # fmt: skip
ARN: Final = re.compile(r"arn:[a-z-]+:[a-z0-9-]+:[a-z0-9-]*:(\d{12}|aws)?:.+")
ARN_ARGUMENT: Final = re.compile(r"(^|_)arns?$")
JSON_ARGUMENTS: Final = ("policy", "assume_role_policy", "container_definitions")
CIDR_ARGUMENTS: Final = ("cidr_block", "cidr_ipv4", "cidr_ipv6")
# Fargate gives memory to processors in steps: CPU units -> MiB.
FARGATE_MEMORY: Final = {
    "256": (512, 1024, 2048),
    "512": range(1024, 4097, 1024),
    "1024": range(2048, 8193, 1024),
    "2048": range(4096, 16385, 1024),
    "4096": range(8192, 30721, 1024),
    "8192": range(16384, 61441, 4096),
    "16384": range(32768, 122881, 8192),
}


@dataclass(frozen=True, slots=True)
class Mistake:
    summary: str
    detail: str
    attribute: str  # the top-level one


def mistakes(type_name: str, config: dict[str, Value]) -> list[Mistake]:
    """The arguments of a resource or data source that the provider would refuse."""
    found = [one for path, value in scalars(config) for one in of_argument(type_name, path, value)]
    if type_name == "aws_ecs_task_definition":
        found += fargate(config)
    if type_name == "aws_cloudwatch_log_group":
        days = config.get("retention_in_days")
        if isinstance(days, int) and days not in RETENTION_DAYS:
            found.append(refused("retention_in_days", days, f"one of {', '.join(str(day) for day in RETENTION_DAYS)}"))
    return found


def scalars(value: Value, path: str = "") -> Iterator[tuple[str, str]]:
    """Every known text in it, with its path; elements of lists have the path of their list."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from scalars(item, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for item in value:
            yield from scalars(item, path)
    elif isinstance(value, str):
        yield path, value


def of_argument(type_name: str, path: str, value: str) -> Iterator[Mistake]:
    choices = CHOICES.get(type_name, {}).get(path)
    name = path.rsplit(".", 1)[-1]
    if choices is not None and value not in choices:
        yield refused(path, value, f"one of {', '.join(choices)}")
    pattern, wanted = NAMES.get((type_name, path), ("", ""))
    if pattern and not re.fullmatch(pattern, value):
        yield refused(path, value, wanted)
    if ARN_ARGUMENT.search(name) and not ARN.fullmatch(value):
        yield refused(path, value, "an ARN")
    if name in CIDR_ARGUMENTS and not is_network(value):
        yield refused(path, value, "a range of addresses, like 10.0.0.0/16, with no bits set beyond its mask")
    if path in JSON_ARGUMENTS and value and not is_json(value):
        yield refused(path, value[:40], "JSON")


def is_network(text: str) -> bool:
    try:
        ipaddress.ip_network(text)
    except ValueError:
        return False
    return True


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def fargate(config: dict[str, Value]) -> Iterator[Mistake]:
    launch, cpu, memory = config.get("requires_compatibilities"), config.get("cpu"), config.get("memory")
    known = isinstance(launch, list) and not any(isinstance(one, Unknown) for one in launch)
    if (
        not known
        or "FARGATE" not in cast("list[Value]", launch)
        or not isinstance(cpu, str)
        or not isinstance(memory, str)
    ):
        return
    steps = FARGATE_MEMORY.get(cpu)
    if steps is None:
        yield refused("cpu", cpu, f"one of {', '.join(FARGATE_MEMORY)} on Fargate")
    elif not memory.isdigit() or int(memory) not in steps:
        yield refused(
            "memory", memory, f"one of {', '.join(str(step) for step in steps)} on Fargate where cpu is {cpu}"
        )


def refused(path: str, value: object, wanted: str) -> Mistake:
    return Mistake(f"invalid value for {path}", f"expected {path} to be {wanted}, got {value!r}", path.split(".")[0])
