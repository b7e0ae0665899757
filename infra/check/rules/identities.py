"""Rules for who is who: clients of agents, the servers that tasks speak to, tasks in Postgres, and images."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, cast
from urllib.parse import parse_qs, urlsplit

from infra.check.rules.network import containers, settings_of
from infra.check.stack import Stack, Violation
from runtime.settings.listeners import listeners_of
from runtime.settings.values import SettingsError

DIGEST: Final = re.compile(r"@sha256:[0-9a-f]{64}$")
PROCESSES: Final = ("agent", "compactor")


def clients_prove_who_they_are(stack: Stack) -> Iterator[Violation]:
    """Every listener of an agent authenticates and encrypts, ACLs are enforced, and nothing opens it anyway."""
    for task, container in containers(stack):
        with suppress(SettingsError):  # another rule reports it
            settings = settings_of(container)
            if settings is None:
                continue
            name = container.get("name")
            if settings.insecure:
                yield Violation(task, f"container {name} sets insecure: anybody may connect", "leave insecure out")
            if container.get("command") != ["agent"]:
                continue
            for listener in listeners_of(settings):
                if not (listener.authenticates and listener.encrypts):
                    message = f"clients of container {name}'s listener {listener.name} are not authenticated by TLS"
                    remedy = "set its protocol to SASL_SSL, or to SSL with tls.client.auth=required"
                    yield Violation(task, message, remedy)
            if settings.acl_mode not in ("on", "auto") or settings.allow_everyone_if_no_acl_found:
                remedy = "set acl.mode to on, and leave allow.everyone.if.no.acl.found out"
                yield Violation(task, f"container {name} does not enforce ACLs", remedy)


def postgres_is_verified(stack: Stack) -> Iterator[Violation]:
    for task, container in containers(stack):
        url = variable(container, "SILTSTONE_METADATA_URL")
        if not url:
            continue
        query = parse_qs(urlsplit(url).query)
        if query.get("sslmode") != ["verify-full"] or not query.get("sslrootcert", [""])[0].startswith("/"):
            message = f"container {container.get('name')} does not verify which Postgres answers"
            yield Violation(task, message, "write sslmode=verify-full and sslrootcert=PATH into metadata.url")


def processes_have_roles_of_their_own(stack: Stack) -> Iterator[Violation]:
    """Agents and compactors log into Postgres neither as its owner nor as each other, each with its own password."""
    # All others, such as the one that migrates, are the owner's.
    owners = {("role", str(database.values.get("username"))) for database in stack.of("aws_db_instance")}
    used: dict[str, set[tuple[str, str]]] = {}
    for _, container in containers(stack):
        used.setdefault(process_of(container), set()).update(credentials(container))
    owners |= used.get("", set())
    for task, container in containers(stack):
        process = process_of(container)
        for what, value in credentials(container) if process else ():
            others = {other for other in PROCESSES if other != process and (what, value) in used.get(other, set())}
            whose = "the owner's" if (what, value) in owners else f"the {min(others)}'s" if others else ""
            if whose:
                message = f"container {container.get('name')} uses {whose} {what} in Postgres"
                remedy = "give each process its own, by `siltstone migrate --agent ... --compactor ...`"
                yield Violation(task, message, remedy)


def process_of(container: dict[str, object]) -> str:
    """`agent`, `compactor`, or "" for all else."""
    [command, *_] = [*cast("list[str]", container.get("command") or []), ""]
    return command if command in PROCESSES else ""


def credentials(container: dict[str, object]) -> Iterator[tuple[str, str]]:
    """The container logs into Postgres with these: ("role", its name), ("password", the place of its secret)."""
    url = urlsplit(variable(container, "SILTSTONE_METADATA_URL"))
    [named] = parse_qs(url.query).get("password_secret", [""])
    # ECS writes which part of the secret it takes behind the ARN
    given = secret(container, "PGPASSWORD").removesuffix(":password::")
    found = {"role": user_of(container), "password": given or named}
    yield from ((what, value) for what, value in found.items() if value)


def images_are_of_one_build(stack: Stack) -> Iterator[Violation]:
    """The image that a tag names can be replaced: tasks that start later would run something else."""
    ours = {str(each.get("image")) for _, each in containers(stack) if each.get("command") == ["agent"]}
    for task, container in containers(stack):
        image = str(container.get("image"))
        if (image in ours or user_of(container)) and DIGEST.search(image) is None:
            message = f"the image of container {container.get('name')} is not named by its digest: {image}"
            yield Violation(task, message, "write REPOSITORY@sha256:DIGEST")


def variable(container: dict[str, object], name: str) -> str:
    listed = cast("list[dict[str, str]]", container.get("environment") or [])
    return next((each["value"] for each in listed if each["name"] == name), "")


def secret(container: dict[str, object], name: str) -> str:
    listed = cast("list[dict[str, str]]", container.get("secrets") or [])
    return next((each["valueFrom"] for each in listed if each["name"] == name), "")


def user_of(container: dict[str, object]) -> str:
    return urlsplit(variable(container, "SILTSTONE_METADATA_URL")).username or ""
