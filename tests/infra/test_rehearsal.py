"""A rehearsed apply of an example: the rights that it gives, and the commands in its outputs, which name the resources
that are made and which a shell runs as intended.

The tests do not need AWS's own command line: a program in its place records its calls and answers as AWS does.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from infra.check import checks
from infra.check.rules import rights
from infra.check.stack import Stack
from infra.check.stand_in import provider, schema
from infra.check.terraform import Rehearsal, Terraform, copied
from tests.infra import seeds

ACCOUNT = "123456789012"
TASK = "arn:aws:ecs:eu-central-1:123456789012:task/silt/0123456789abcdef"
AWS = """\
#!/bin/sh
for word in "$@"; do printf '%s\\n' "$word"; done > "$0.words.$2"
case "$2 $*" in
  run-task*) echo "${STARTED}" ;;
  *lastStatus*) echo STOPPED ;;
  *'tasks[0].containers[?name==`"admin"`].exitCode | [0]'*) echo "${CODE}" ;;
  *exitCode*) echo 0 ;;
  *stoppedReason*) echo "CannotPullContainerError" ;;
  filter-log-events*) printf 'clean\\nadopted\\n' ;;
  list-job-runs*) echo "job-1 job-2" ;;
esac
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rehearsal]:
    binary = shutil.which("terraform")
    if binary is None:
        pytest.skip("terraform is not on the PATH")
    scratch = tmp_path_factory.mktemp("commands")
    with provider.serving(schema.load()) as plugin:
        terraform = Terraform(binary, plugin, copied(checks.TREE, scratch / "tree"), scratch)
        rehearsal = terraform.rehearse(seeds.THREE_ZONES)
        assert not rehearsal.failed(), rehearsal.findings
        yield rehearsal


def typed(folder: Path, script: str, **answers: str) -> subprocess.CompletedProcess[str]:
    """Runs the script in a shell, as a person would type it, with the `aws` above on its PATH."""
    aws = folder / "aws"
    aws.write_text(AWS)
    aws.chmod(0o755)
    environment = {"STARTED": TASK, "CODE": "0", **answers, "PATH": f"{folder}:{os.environ['PATH']}"}
    return subprocess.run(
        ["/bin/sh", "-c", script], env=environment, capture_output=True, text=True, timeout=30, check=False
    )


def words(folder: Path, command: str) -> list[str]:
    """How `aws` was called with that command, the last time."""
    return (folder / f"aws.words.{command}").read_text().splitlines()


def after(option: str, command: Sequence[str]) -> str:
    return command[command.index(option) + 1]


def named(rehearsal: Rehearsal, kind: str) -> list[dict[str, Any]]:
    return [resource.values for resource in rehearsal.resources if resource.type == kind]


@pytest.mark.parametrize(("output", "suspended"), [("stop_commands", "true"), ("start_commands", "false")])
def test_every_service_is_stopped_and_started_by_its_name_and_autoscaling_with_it(
    made: Rehearsal, output: str, suspended: str
) -> None:
    commands = [shlex.split(line) for line in made.outputs[output]]
    counts = {
        after("--service", each): int(after("--desired-count", each))
        for each in commands
        if each[2] == "update-service"
    }
    services = {service["name"]: service["desired_count"] for service in named(made, "aws_ecs_service")}
    # the probe is a client, and may go on as other clients do
    wanted = {name: count for name, count in services.items() if not name.endswith("-probe")}
    assert counts == (dict.fromkeys(wanted, 0) if suspended == "true" else wanted)
    scaling = next(each for each in commands if each[2] == "register-scalable-target")
    (target,) = named(made, "aws_appautoscaling_target")
    assert after("--resource-id", scaling) == target["resource_id"]
    states = dict(each.split("=") for each in after("--suspended-state", scaling).split(","))
    assert set(states.values()) == {suspended} and len(states) == 3
    # suspended before the count falls below its minimum, at work again when it is back
    assert commands.index(scaling) == (0 if suspended == "true" else len(commands) - 1)


def test_merges_on_spark_are_cancelled_one_by_one(made: Rehearsal, tmp_path: Path) -> None:
    done = typed(tmp_path, made.outputs["stop_commands"][-1])
    assert done.returncode == 0, done.stderr
    (application,) = named(made, "aws_emrserverless_application")
    assert after("--application-id", words(tmp_path, "cancel-job-run")) == application["id"]
    assert after("--job-run-id", words(tmp_path, "cancel-job-run")) == "job-2"


def test_words_of_siltstone_reach_the_admin_task_and_its_answer_comes_back(made: Rehearsal, tmp_path: Path) -> None:
    # given the function that is defined by the output
    define = made.outputs["admin_command"]
    # when a command is typed
    done = typed(tmp_path, define + "ADMIN_MIB=4096 ecs_siltstone rebuild --append-newer-l0", CODE="3")
    # then it runs in the task's container, and what it said and its exit code are ours
    assert (done.stdout, done.returncode) == ("clean\nadopted\n", 3), done.stderr
    run = words(tmp_path, "run-task")
    overrides = json.loads(after("--overrides", run))
    assert (overrides["cpu"], overrides["memory"]) == ("512", "4096")
    (container,) = overrides["containerOverrides"]
    tasks = {
        task["family"]: json.loads(task["container_definitions"]) for task in named(made, "aws_ecs_task_definition")
    }
    assert container["name"] in [each["name"] for each in tasks[after("--task-definition", run)]]
    assert container["command"] == ["rebuild", "--append-newer-l0"]
    assert container["environment"] == [{"name": "SILTSTONE_BOOTSTRAP", "value": made.outputs["bootstrap_servers"]}]
    assert after("--log-stream-names", words(tmp_path, "filter-log-events")).endswith("/admin/0123456789abcdef")


def test_quotes_and_backslashes_of_words_reach_the_admin_task(made: Rehearsal, tmp_path: Path) -> None:
    done = typed(tmp_path, made.outputs["admin_command"] + r"""ecs_siltstone topics describe 'a "b" \c'""")
    assert done.returncode == 0, done.stderr
    (container,) = json.loads(after("--overrides", words(tmp_path, "run-task")))["containerOverrides"]
    assert container["command"] == ["topics", "describe", r'a "b" \c']


@pytest.mark.parametrize("answers", [{"STARTED": "None"}, {"CODE": "None"}])
def test_a_task_that_never_ran_is_no_success(made: Rehearsal, tmp_path: Path, answers: dict[str, str]) -> None:
    done = typed(tmp_path, made.outputs["admin_command"] + "ecs_siltstone doctor", **answers)
    assert done.returncode == 1
    assert "no task was started" in done.stderr or "CannotPullContainerError" in done.stderr


def test_the_admin_task_may_write_where_rebuild_fills_holes_and_reach_agents(made: Rehearsal) -> None:
    policy = next(each for each in named(made, "aws_iam_role_policy") if each["name"] == "admin")
    allowed = {one["Sid"]: one for one in json.loads(policy["policy"])["Statement"]}
    assert str(allowed["FillHoles"]["Resource"]).endswith("/l1/*")
    assert made.outputs["network"]["admin_security_group_id"] in made.outputs["migrate_command"]


def test_the_list_of_rights_is_all_used(made: Rehearsal) -> None:
    """A right in brackets that no plan gives any more would hide that it is gone."""
    given = {(role, action) for _, role, action, _, _ in rights.given(Stack(seeds.THREE_ZONES, made.resources))}
    # What goes with a second store alone is in none of the examples; the plans of infra/check/roots have it.
    assert given == {key for key, right in rights.list_of_the_tree().items() if right.on - right.optional}


def test_a_second_store_needs_sessions_if_it_is_a_directory_bucket_and_else_each_right() -> None:
    right = rights.listed("agent  s3:GetObject  l0/* (second-store.json) (second:l0/*)")["agent", "s3:GetObject"]
    assert (right.on, right.optional) == (
        {"l0/*", "second-store.json", "second:l0/*"},
        {"second-store.json", "second:l0/*"},
    )
    needed = {
        bucket: [rights.is_needed(*of, bucket) for of in (
            ("second-store.json", "s3:GetObject"), ("second:l0/*", "s3:GetObject"), ("second", rights.SESSION)
        )]
        for bucket in ("", "quick", "quick--euc1-az1--x-s3")
    }  # fmt: skip
    assert needed == {
        "": [False, False, False],
        "quick": [True, True, False],
        "quick--euc1-az1--x-s3": [True, False, True],
    }


def test_the_places_of_a_second_store_have_names_of_their_own() -> None:
    first, second = ("records", "log"), ("quick--euc1-az1--x-s3", "fast")
    session = f"arn:aws:s3express:eu-central-1:{ACCOUNT}:bucket/"
    assert rights.named("arn:aws:s3:::records", ACCOUNT, first, second) == "bucket"
    assert rights.named(f"{session}{second[0]}", ACCOUNT, first, second) == "second"
    assert rights.named(f"{session}another--euc1-az1--x-s3", ACCOUNT, first, second).startswith("arn:")
    assert rights.named("arn:aws:s3:::quick/fast/l0/*", ACCOUNT, first, ("quick", "fast")) == "second:l0/*"
    assert rights.named("arn:aws:s3:::quick/l0/*", ACCOUNT, first, ("quick", "fast")).startswith("arn:")
