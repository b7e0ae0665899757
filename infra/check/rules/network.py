"""Rules for the way in: load balancers, security groups, subnets, tasks and their environment."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final, cast

from infra.check.iam import several
from infra.check.rules.data import container_definitions
from infra.check.stack import Stack, Violation, blocks
from infra.check.terraform import Resource
from runtime.settings.loading import ENVIRONMENT_PREFIX, load_settings
from runtime.settings.table import Settings
from runtime.settings.values import SettingsError

INTERNAL: Final = tuple(
    ipaddress.IPv4Network(text) for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10")
)
INTERNAL_6: Final = ipaddress.IPv6Network("fc00::/7")
DRAINING: Final = (["agent"], ["compactor"])  # commands that must drain before they end
DEFAULT_STOP_S: Final = 30
# Containers that write to SCRATCH: snapshots of the metadata, and spilled keys of merges.
WRITERS: Final = ("compactor",)
SCRATCH: Final = "/tmp"  # noqa: S108 - a place inside containers
SECRET_NAME: Final = re.compile(r"PASSWORD|PASSWD|SECRET|TOKEN|ACCESS_KEY|PRIVATE_KEY|CREDENTIAL", re.IGNORECASE)
SECRET_ARN: Final = "arn:aws:secretsmanager:"  # noqa: S105 - names a secret, and is none
SECRET_VALUE: Final = re.compile(r"AKIA[0-9A-Z]{16}|-----BEGIN|://[^/@\s:]+:[^/@\s]+@")
RANGES: Final = ("cidr_blocks", "ipv6_cidr_blocks", "prefix_list_ids")
FOR_INTERNAL: Final = "Agents advertise private addresses: nobody on the internet is a client of theirs"


def load_balancers_are_internal(stack: Stack) -> Iterator[Violation]:
    for balancer in stack.of("aws_lb", "aws_alb"):
        if balancer.values.get("internal") is not True:
            yield Violation(balancer, f"the load balancer faces the internet. {FOR_INTERNAL}", "set internal = true")


def no_open_ingress(stack: Stack) -> Iterator[Violation]:
    for rule, ranges in ingress(stack):
        for cidr in ranges:
            if not is_internal(cidr):
                message = f"the security group lets {cidr} in. {FOR_INTERNAL}"
                yield Violation(rule, message, "name the clients' security groups or private ranges")


def is_internal(cidr: str) -> bool:
    """Whether the addresses are private; False for a prefix list, because its content is unknown here."""
    if cidr.startswith("pl-"):
        return False
    network = ipaddress.ip_network(cidr)
    if isinstance(network, ipaddress.IPv4Network):
        return any(network.subnet_of(own) for own in INTERNAL)
    return network.subnet_of(INTERNAL_6)


def ingress(stack: Stack) -> Iterator[tuple[Resource, list[str]]]:
    for rule in stack.of("aws_vpc_security_group_ingress_rule"):
        ranges = (rule.values.get("cidr_ipv4"), rule.values.get("cidr_ipv6"), rule.values.get("prefix_list_id"))
        yield rule, [cidr for cidr in ranges if cidr]
    for group in stack.of("aws_security_group", "aws_default_security_group"):
        for rule in blocks(group.values, "ingress"):
            yield group, ranges_of(rule)
    for rule in stack.of("aws_security_group_rule"):
        if rule.values.get("type") == "ingress":
            yield rule, ranges_of(rule.values)


def ranges_of(rule: dict[str, Any]) -> list[str]:
    return [one for name in RANGES for one in several(rule.get(name))]


def no_public_addresses(stack: Stack) -> Iterator[Violation]:
    for service in stack.of("aws_ecs_service"):
        for network in blocks(service.values, "network_configuration"):
            if network.get("assign_public_ip"):
                yield Violation(service, "tasks get public addresses", "set assign_public_ip = false")
    for template in stack.of("aws_launch_template"):
        for interface in blocks(template.values, "network_interfaces"):
            if str(interface.get("associate_public_ip_address")).lower() == "true":
                yield Violation(template, "instances get public addresses", "set associate_public_ip_address = false")


def instances_want_tokens(stack: Stack) -> Iterator[Violation]:
    for template in stack.of("aws_launch_template"):
        options = blocks(template.values, "metadata_options")
        if not options or any(option.get("http_tokens") != "required" for option in options):
            message = "instances give their credentials to anyone who can make them fetch a URL (IMDSv1)"
            yield Violation(template, message, 'set http_tokens = "required" in metadata_options')


def tasks_have_no_more_rights_than_they_need(stack: Stack) -> Iterator[Violation]:
    for task, container in containers(stack):
        name = container.get("name")
        user = str(container.get("user", "")).split(":")[0]
        if user == "root" or (user and not user.strip("0")):
            yield Violation(task, f"container {name} runs as root", 'set user = "10001"')
        if container.get("privileged"):
            yield Violation(task, f"container {name} is privileged", "take privileged out")
        if container.get("readonlyRootFilesystem") is not True:
            yield Violation(task, f"container {name} can write its own files", "set readonlyRootFilesystem = true")
        if name in WRITERS and not has_writable_tmp(task, container):
            yield Violation(
                task, f"container {name} has no /tmp that it can write", "mount a volume of the task at /tmp"
            )


def has_writable_tmp(task: Resource, container: dict[str, object]) -> bool:
    """Whether a volume of the task is mounted at /tmp."""
    volumes = [volume.get("name") for volume in blocks(task.values, "volume")]
    mounts = cast("list[dict[str, Any]]", container.get("mountPoints") or [])
    return any(
        mount.get("containerPath") == SCRATCH and not mount.get("readOnly") and mount.get("sourceVolume") in volumes
        for mount in mounts
    )


def no_plaintext_secrets(stack: Stack) -> Iterator[Violation]:
    for task, container in containers(stack):
        for variable in cast("list[dict[str, Any]]", container.get("environment") or []):
            name, value = str(variable.get("name")), str(variable.get("value"))
            if (SECRET_NAME.search(name) and not value.startswith(SECRET_ARN)) or SECRET_VALUE.search(value):
                yield plaintext(task, container, name)
        for word in [*several(container.get("command")), *several(container.get("entryPoint"))]:
            if SECRET_VALUE.search(word):
                yield plaintext(task, container, "in its command")
        for secret in cast("list[dict[str, Any]]", container.get("secrets") or []):
            if not str(secret.get("valueFrom")).startswith("arn:"):
                yield plaintext(task, container, str(secret.get("name")))


def plaintext(task: Resource, container: dict[str, object], what: str) -> Violation:
    message = f"container {container.get('name')} has a secret in plain text: {what}"
    return Violation(task, message, "put it into `secrets` with valueFrom: the ARN of the secret")


def settings_are_siltstones(stack: Stack) -> Iterator[Violation]:
    """Let the product itself read the environment that a container would get."""
    for task, container in containers(stack):
        try:
            settings_of(container)
        except SettingsError as error:
            message = f"container {container.get('name')} would not start: {error}"
            yield Violation(task, message, "see docs/settings.md")


def settings_of(container: dict[str, object]) -> Settings | None:
    """The settings that Siltstone reads from the environment; None if the container is not Siltstone's. Raises
    SettingsError.
    """
    listed = cast("list[dict[str, str]]", container.get("environment") or [])
    environment = {variable["name"]: variable["value"] for variable in listed}
    is_ours = any(name.startswith(ENVIRONMENT_PREFIX) for name in environment)
    return load_settings(None, environment, {}) if is_ours else None


def tasks_have_time_to_drain(stack: Stack) -> Iterator[Violation]:
    """An agent that is killed while it drains answers nobody: clients wait for their timeouts."""
    for task, container in containers(stack):
        stop_ms = 1000 * int(cast("int", container.get("stopTimeout", DEFAULT_STOP_S)))
        with suppress(SettingsError):  # another rule reports it
            settings = settings_of(container) if container.get("command") in DRAINING else None
            if settings is None or drain_ms(container, settings) < stop_ms:
                continue
            message = f"container {container.get('name')} is killed before it has drained"
            yield Violation(task, message, "set stopTimeout above drain.notice.ms and drain.timeout.ms together")


def drain_ms(container: dict[str, object], settings: Settings) -> int:
    notice_ms = settings.drain_notice_ms if container.get("command") == ["agent"] else 0
    return notice_ms + settings.drain_timeout_ms


def agents_are_replaced_in_batches(stack: Stack) -> Iterator[Violation]:
    """A client that knows only agents that are gone may never find the new ones."""
    agents = [task.values.get("arn") for task, container in containers(stack) if container.get("command") == ["agent"]]
    for service in stack.of("aws_ecs_service"):
        if service.values.get("task_definition") not in agents or service.values.get("desired_count") == 1:
            continue
        if int(cast("int", service.values.get("deployment_maximum_percent") or 200)) >= 200:
            yield Violation(
                service,
                "all agents are replaced at once",
                "set deployment_maximum_percent below 200, so that ECS replaces a part of them at a time",
            )


def tasks_are_logged(stack: Stack) -> Iterator[Violation]:
    for task, container in containers(stack):
        if not container.get("logConfiguration"):
            message = f"the output of container {container.get('name')} is lost"
            yield Violation(task, message, "give it a logConfiguration")


def containers(stack: Stack) -> Iterator[tuple[Resource, dict[str, object]]]:
    for task in stack.of("aws_ecs_task_definition"):
        for container in container_definitions(task):
            yield task, container
