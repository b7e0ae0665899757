"""The rules on a state or a plan that somebody else made, as `terraform show -json` tells it."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from infra.check import __main__ as command
from infra.check import checks
from infra.check.shown import marked
from infra.check.stack import NotKnownYet
from infra.check.stand_in import provider, schema
from infra.check.stand_in.plausible import ACCOUNT
from infra.check.terraform import Plugin, Terraform, copied
from tests.infra import operations_seeds, policy_seeds, seeds

MISTAKES = (
    "a public load balancer",
    "logs for ever",
    "a bucket policy for another account",
    "a right to write everything",
    "no compactor, which says nothing, and the alarm takes that for good",
    "a threshold of a thousand years",
    "a field of another process",
)
SEEDS = policy_seeds.IN_WHAT_IT_MAKES + operations_seeds.OF_SILENCE


@dataclass(frozen=True)
class Shown:
    """A plan and the state after its apply."""

    plan: str
    state: str


def shown(binary: str, plugin: Plugin, scratch: Path, *sown: seeds.Seed) -> Shown:
    tree = copied(checks.TREE, scratch / "tree")
    for seed in sown:
        seed.sow(tree)
    rehearsal = Terraform(binary, plugin, tree, scratch).rehearse(seeds.THREE_ZONES)
    assert not rehearsal.failed(), rehearsal.findings
    own = scratch / seeds.THREE_ZONES.replace("/", "_")
    environment = {**os.environ, **plugin.settings, "TF_DATA_DIR": str(own / "data")}

    def told(file: str) -> str:
        words = [binary, "show", "-json", str(own / file)]
        folder = tree / seeds.THREE_ZONES
        return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=True).stdout

    return Shown(told("plan"), told("state"))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Shown, Shown]]:
    """The tree as it is, and with mistakes."""
    binary = shutil.which("terraform")
    if binary is None:
        pytest.skip("terraform is not on the PATH")
    several = [seed for seed in SEEDS if seed.name in MISTAKES]
    with provider.serving(schema.load()) as plugin:
        yield (
            shown(binary, plugin, tmp_path_factory.mktemp("clean")),
            shown(binary, plugin, tmp_path_factory.mktemp("wrong"), *several),
        )


def judged(text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    status = command.main(["--shown", "-"])
    return status, capsys.readouterr().out


@pytest.mark.parametrize("account", [ACCOUNT, "210987654321"])
def test_a_state_is_judged_by_the_account_that_it_is_of(
    account: str,
    made: tuple[Shown, Shown],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    clean, wrong = (each.state.replace(ACCOUNT, account) for each in made)
    (tmp_path / "state.json").write_text(clean)
    assert command.main(["--shown", str(tmp_path / "state.json")]) == 0
    assert "OK. All rules were judged." in capsys.readouterr().out
    status, said = judged(wrong, monkeypatch, capsys)
    assert status == 1 and "NOT JUDGED" not in said
    for message in (seed.message for seed in SEEDS if seed.name in MISTAKES):
        assert message in said


def test_an_account_that_is_another_one_is_a_stranger(
    made: tuple[Shown, Shown], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    state = json.loads(made[1].state.replace("999999999999", "111111111111").replace(ACCOUNT, "999999999999"))
    status, said = judged(json.dumps(state), monkeypatch, capsys)
    assert status == 1 and "AWS:arn:aws:iam::111111111111:root" in said


def test_a_plan_is_judged_as_far_as_it_is_known(
    made: tuple[Shown, Shown], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # given the plan of a deployment that is all new: nothing wrong is said of it, and no rule passes in silence
    status, said = judged(made[0].plan, monkeypatch, capsys)
    assert (status, "FAILED" in said) == (4, False), said
    rows = dict(line.split("standard input") for line in said.splitlines() if "  standard input  " in line)
    results = {check.strip(): result.strip() for check, result in rows.items()}
    assert results["database"] == "ok"
    assert results["rights"].endswith("NOT JUDGED")
    assert "NOT JUDGED  rights: rights are those of the list: module.siltstone." in said
    # given one with mistakes: those that are known already are found
    status, said = judged(made[1].plan, monkeypatch, capsys)
    assert status == 1
    assert "the load balancer faces the internet" in said and "the log group keeps everything for ever" in said
    assert "silence counts as well-being" in said and "its threshold 31536000000 is out of all reason" in said


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Plan: 3 to add", "is no JSON"),
        ("[]", "neither a state nor a plan"),
        ('{"resources": []}', "neither a state nor a plan"),
        ('{"format_version": "1.0", "terraform_version": "1.11.4"}', "no aws_ecs_task_definition"),
    ],
)
def test_what_terraform_did_not_show_is_refused(
    text: str, reason: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, said = judged(text, monkeypatch, capsys)
    assert status == 2 and reason in said


def test_a_file_that_is_not_there_is_no_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--shown", str(tmp_path / "none.json")]) == 2
    assert "says nothing about" in capsys.readouterr().out


def test_values_that_are_not_known_are_not_taken_for_absent_ones() -> None:
    values = marked(
        {"name": "silt", "tags": {"a": "b"}, "groups": ["sg-1"], "rule": [{"id": "all"}, {"id": "some"}]},
        {"arn": True, "tags": {}, "groups": [False, True], "rule": [{}, {"prefix": True}]},
        "aws_thing.one",
    )
    assert (values["name"], values.get("tags"), values.get("absent")) == ("silt", {"a": "b"}, None)
    for name in ("arn", "groups"):
        with pytest.raises(NotKnownYet, match=rf"aws_thing\.one\.{name}"):
            values.get(name)
    known, other = values["rule"]
    assert list(known.values()) == ["all"] and other["id"] == "some"
    with pytest.raises(NotKnownYet, match=r"aws_thing\.one\.rule\.prefix"):
        other.values()
