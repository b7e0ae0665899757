"""The check with the real AWS provider, where a mirror of Terraform's has it, and moto in place of AWS.

The provider waits by the clock for some of what it makes (a minute for a load balancer, two for a Postgres), whoever
answers. So one root module is applied here, with neither bucket nor Postgres; `make infra-check` applies all of them,
and `make soak` one in which every mistake is planted.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from infra.check import checks
from infra.check.providers import plugged
from infra.check.real.mirror import Mirror, mirror_at_hand
from infra.check.schemas import __main__ as schemas
from infra.check.sources import Places
from infra.check.stack import Stack
from infra.check.stand_in.schema import SCHEMAS
from infra.check.terraform import Plugin, Rehearsal, Terraform, copied
from tests.infra import policy_seeds, seeds
from tests.infra.seeds import Seed
from tests.infra.test_infra_check import matching

pytestmark = pytest.mark.timeout(600)  # the first test waits for all that is made

VALUES = Path(__file__).parent / "real.tfvars"
OF_RDS = re.compile(r"arn:[\w:-]+:secret:rds!db-[\w-]+")
POLICIES = {
    "aws_iam_role": "assume_role_policy",
    "aws_iam_role_policy": "policy",
    "aws_s3_bucket_policy": "policy",
    "data.aws_iam_policy_document": "json",
}
# Mistakes in modules that these values make whole.
SAMPLE = ("modules/agents/iam.tf", "modules/cluster/iam.tf", "modules/cluster/admin.tf", "modules/compactor/main.tf")
SAMPLED = [
    seeds.RESTLESS,
    *(seed for seed in policy_seeds.IN_WHAT_IT_MAKES if seed.file in SAMPLE and seed.root == seeds.MINIMAL),
]

REFUSED = {
    "a password in the configuration",  # then RDS makes no secret, and the apply fails on its name
    "a lifecycle rule that keeps some versions for ever",  # moto forgets it, and the provider waits for it
}
TAKEN = [seed for seed in policy_seeds.IN_WHAT_IT_MAKES if seed.name not in REFUSED]


@dataclass(frozen=True)
class Provided:
    """Terraform, and where it finds the provider."""

    binary: str
    mirror: Mirror


@pytest.fixture(scope="module")
def provided() -> Provided:
    binary, mirror = shutil.which("terraform"), mirror_at_hand()
    if binary is None or mirror is None:
        pytest.skip("terraform, or a mirror with its AWS provider, is not at hand")
    return Provided(binary, mirror)


@dataclass(frozen=True)
class Made:
    """A tree after an apply with these values, and what the rules find in it."""

    rehearsal: Rehearsal
    tree: Path
    values: Path | None
    findings: set[tuple[str, ...]]


def judged(rehearsal: Rehearsal, tree: Path, values: Path | None) -> Made:
    places = Places(checks.TREE, rehearsal.module_folders)
    outcomes = list(checks.judged(Stack(rehearsal.root, rehearsal.resources), "", places.of))
    assert [line for outcome in outcomes for line in outcome.unjudged] == []
    found = {(one.check, one.place, one.message) for outcome in outcomes for one in outcome.findings}
    return Made(rehearsal, tree, values, {tuple(neutral(part, rehearsal) for part in one) for one in found})


def neutral(text: str, rehearsal: Rehearsal) -> str:
    """The text with the address of each resource in place of its ARN, which holds what its maker chose."""
    names = {one.values["arn"]: one.address.replace('"', "'") for one in rehearsal.resources if one.values.get("arn")}
    for arn in sorted(names, key=len, reverse=True):
        text = text.replace(arn, f"<{names[arn]}>")
    return OF_RDS.sub("<the secret that RDS made>", text)


def sown(scratch: Path, *several: Seed) -> Path:
    tree = copied(checks.TREE, scratch / "tree")
    for seed in several:
        seed.sow(tree)
    return tree


def made(provided: Provided, scratch: Path, root: str, several: list[Seed], values: Path | None) -> Made:
    """The tree with these mistakes, made with the real provider, planned again, and destroyed."""
    tree = sown(scratch, *several)
    own = scratch / VALUES.name if values else None
    if own and values:
        shutil.copy(values, own)
    with plugged(provided.mirror, scratch, scratch) as plugin:
        terraform = Terraform(provided.binary, plugin, tree, scratch)
        rehearsal = terraform.rehearse(root, own)
        assert rehearsal.resources, rehearsal.findings
        terraform.plan_again(rehearsal, own)
        terraform.destroy(rehearsal, own)
    return judged(rehearsal, tree, own)


def made_by_the_stand_in(provided: Provided, scratch: Path, several: list[Seed], other: Made) -> Made:
    """The same tree with the same values, made with the stand-in."""
    tree = sown(scratch, *several)
    for values in other.tree.rglob("*.tfvars"):
        shutil.copy(values, tree / values.relative_to(other.tree))
    with plugged(None, scratch) as plugin:
        terraform = Terraform(provided.binary, plugin, tree, scratch)
        return judged(terraform.rehearse(other.rehearsal.root, other.values), tree, other.values)


@pytest.fixture(scope="module")
def real(provided: Provided, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return made(provided, tmp_path_factory.mktemp("real"), ".", SAMPLED, VALUES)


@pytest.fixture(scope="module")
def stand_in(provided: Provided, tmp_path_factory: pytest.TempPathFactory, real: Made) -> Made:
    return made_by_the_stand_in(provided, tmp_path_factory.mktemp("stand-in"), SAMPLED, real)


def test_the_real_provider_makes_the_tree_finds_the_plan_that_never_rests_and_destroys_it(real: Made) -> None:
    steps = real.rehearsal.findings
    assert list(steps) == ["init", "validate", "plan", "apply", "second plan", "destroy"]
    assert {step: found for step, found in steps.items() if found and step != "second plan"} == {}
    assert len(steps["second plan"]) == len(matching(seeds.RESTLESS, list(steps["second plan"]))) == 1
    assert real.rehearsal.left_out == {}


def test_the_stand_in_makes_the_same_resources_with_the_same_policies(real: Made, stand_in: Made) -> None:
    assert_same_policies(real, stand_in)
    assert len(real.rehearsal.resources) > 90


def test_the_rules_find_the_same_mistakes_in_both(real: Made, stand_in: Made) -> None:
    assert real.findings == stand_in.findings
    assert len(real.findings) >= len(SAMPLED) > 9


@pytest.mark.soak
@pytest.mark.parametrize("several", [[], TAKEN], ids=["as it is", "with every mistake"])
def test_real_provider_and_stand_in_agree_about_the_largest_example(
    provided: Provided, tmp_path_factory: pytest.TempPathFactory, several: list[Seed]
) -> None:
    real = made(provided, tmp_path_factory.mktemp("real"), seeds.THREE_ZONES, several, None)
    found = {step for step, findings in real.rehearsal.findings.items() if findings}
    assert found <= ({"second plan"} if several else set()), real.rehearsal.findings
    stand_in = made_by_the_stand_in(provided, tmp_path_factory.mktemp("stand-in"), several, real)
    assert_same_policies(real, stand_in)
    assert real.findings == stand_in.findings
    assert bool(several) == bool(real.findings)


def assert_same_policies(real: Made, stand_in: Made) -> None:
    theirs, ours = policies(real.rehearsal), policies(stand_in.rehearsal)
    assert ours.keys() == theirs.keys()
    assert ours == theirs


def policies(rehearsal: Rehearsal) -> dict[str, object]:
    """The policy document of each resource, by its address; None if it has none."""
    return {
        one.address: json.loads(neutral(one.values[POLICIES[one.type]], rehearsal)) if one.type in POLICIES else None
        for one in rehearsal.resources
    }


def test_the_provider_refuses_values_that_its_types_allow(provided: Provided, tmp_path: Path) -> None:
    plugin = Plugin("", provided.mirror.settings(tmp_path), is_real=True)
    hidden: list[Seed] = seeds.FOR_THE_PROVIDER
    # What depends on a mistake is not looked at: mend those that were found, and look for the others again.
    while hidden:
        scratch = tmp_path / str(len(hidden))
        scratch.mkdir()
        terraform = Terraform(provided.binary, plugin, sown(scratch, *hidden), scratch)
        found = terraform.rehearse(seeds.MINIMAL).findings["validate"]
        left = [seed for seed in hidden if not matching(seed, list(found))]
        assert len(found) == len(hidden) - len(left) > 0, ([seed.name for seed in left], found)
        hidden = left


def test_the_tests_of_the_configuration_hold_with_the_provider_that_they_mock(
    provided: Provided, tmp_path: Path
) -> None:
    plugin = Plugin("", provided.mirror.settings(tmp_path), is_real=True)
    assert Terraform(provided.binary, plugin, sown(tmp_path), tmp_path).tested() == ()


def test_schemas_are_those_of_the_provider_that_is_at_hand(provided: Provided) -> None:
    kept = json.loads(SCHEMAS.read_text(encoding="utf-8"))
    if kept["provider_version"] != provided.mirror.version:
        pytest.skip("another version of the AWS provider is at hand")
    assert json.loads(schemas.text_of(provided.mirror, provided.binary)) == kept
