"""The check of the Terraform configuration: green on the tree, red on each mistake that is planted in a copy of it.

It runs real Terraform against the stand-in for the AWS provider: nothing is sent anywhere. Runs of Terraform take most
of the time, so mistakes that only Terraform shows are planted together, and each has to be found by its own message at
its own place; `make soak` plants each alone.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.check import __main__ as command
from infra.check import checks, sources
from infra.check.report import Finding
from infra.check.rules import rights
from infra.check.schemas import __main__ as schemas
from infra.check.stand_in import provider, schema
from infra.check.terraform import Plugin, Terraform, copied
from tests.infra import operations_seeds, policy_seeds, seeds
from tests.infra.seeds import Seed

OF_OPERATIONS = {"second day": operations_seeds.OF_THE_SECOND_DAY, "silence": operations_seeds.OF_SILENCE}
SHOWN_BY_TERRAFORM = [
    *seeds.IN_THE_CONFIGURATION,
    *policy_seeds.IN_WHAT_IT_MAKES,
    *(seed for several in OF_OPERATIONS.values() for seed in several),
]


class Attached:
    """Terraform with the stand-in attached. Modules are looked for once for each root, in the tree as it is."""

    def __init__(self, binary: str, plugin: Plugin, scratch: Path) -> None:
        self._binary = binary
        self._plugin = plugin
        self._scratch = scratch
        self._tree: Path | None = None

    def terraform(self, tree: Path) -> Terraform:
        return Terraform(self._binary, self._plugin, tree, tree.parent)

    def data(self, root: str) -> Path:
        if self._tree is None:
            self._tree = copied(checks.TREE, self._scratch / "tree")
        data = self._scratch / root.replace("/", "_")
        if not data.exists():
            assert self.terraform(self._tree).initialize(root, data) == ()
        return data


@pytest.fixture(scope="module")
def attached(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attached]:
    binary = shutil.which("terraform")
    if binary is None:
        pytest.skip("terraform is not on the PATH")
    with provider.serving(schema.load()) as plugin:
        yield Attached(binary, plugin, tmp_path_factory.mktemp("attached"))


def sown(tmp_path: Path, *several: Seed) -> Path:
    tree = copied(checks.TREE, tmp_path / "tree")
    for seed in several:
        seed.sow(tree)
    return tree


def planned(attached: Attached, root: str, tree: Path) -> list[Finding]:
    """The findings of validate, plan and the rules in this tree."""
    outcomes = checks.of_root(attached.terraform(tree), root, None, tree, initialized=attached.data(root))
    return [finding for outcome in outcomes for finding in outcome.findings]


def matching(seed: Seed, found: list[Finding]) -> list[Finding]:
    place = seed.place or seed.file
    return [
        one
        for one in found
        if one.check == seed.check and seed.message in one.message + one.remedy and one.place.startswith(place)
    ]


def assert_found(seed: Seed, found: list[Finding]) -> None:
    assert matching(seed, found), "\n".join(one.shown() for one in found) or "nothing was found"


def test_the_tree_is_green(capsys: pytest.CaptureFixture[str], attached: Attached) -> None:
    status = command.main(["--require", "--stand-in"])
    shown = capsys.readouterr().out
    assert status == 0, shown
    # and every line of the table is there, and ran
    rows = [re.split(r"  +", line) for line in shown.splitlines()]
    good = {(row[0], row[1]) for row in rows if row[2:] == ["ok"]}
    steps = ("init", "validate", "plan", "apply", *checks.RULES)
    assert good >= {(step, root) for step in steps for root in (". (brought)", seeds.MINIMAL, seeds.THREE_ZONES)}
    assert good >= {("fmt", "."), ("variables", "."), ("test", ".")}
    assert "a stand-in with the schemas of hashicorp/aws" in shown.splitlines()[0]


@pytest.mark.parametrize("seed", seeds.IN_THE_TEXT, ids=lambda seed: seed.name)
def test_a_mistake_in_the_text_is_found(seed: Seed, attached: Attached, tmp_path: Path) -> None:
    tree = sown(tmp_path, seed)
    found = attached.terraform(tree).formatted() if seed.check == "fmt" else sources.variables(tree)
    assert_found(seed, list(found))


def test_mistakes_in_what_follows_from_variables_are_found_by_the_tests_of_the_configuration(
    attached: Attached, tmp_path: Path
) -> None:
    found = attached.terraform(sown(tmp_path, *seeds.IN_WHAT_FOLLOWS)).tested()
    assert [seed.name for seed in seeds.IN_WHAT_FOLLOWS if not matching(seed, list(found))] == [], found


def test_each_validation_of_a_variable_is_broken_by_a_run_of_the_tests() -> None:
    declared = [one for one in sources.declarations(checks.TREE, ".") if one.kind == "variable"]
    validations = {one.name: len(re.findall(r"^  validation \{", one.body, re.M)) for one in declared}
    text = (checks.TREE / "tests" / "variables.tftest.hcl").read_text()
    runs = [set(re.findall(r"\bvar\.(\w+)", part)) for part in re.findall(r"expect_failures = \[(.*?)\]", text, re.S)]
    broken = {name: sum(name in run for run in runs) for name in validations}
    assert broken == validations and sum(validations.values()) > 30


def test_mistakes_that_the_provider_would_refuse_are_found_each(attached: Attached, tmp_path: Path) -> None:
    hidden = seeds.IN_THE_CONFIGURATION
    # Terraform stops at the first kind of mistake: mend those that were found, and look for the others again.
    for attempt in range(len(hidden)):
        found = planned(attached, seeds.MINIMAL, sown(tmp_path / str(attempt), *hidden))
        left = [seed for seed in hidden if not matching(seed, found)]
        assert len(left) < len(hidden), ([seed.name for seed in left], found)
        hidden = left
        if not hidden:
            break


def test_mistakes_in_what_would_be_made_are_found_each(attached: Attached, tmp_path: Path) -> None:
    found = planned(attached, seeds.THREE_ZONES, sown(tmp_path, *policy_seeds.IN_WHAT_IT_MAKES))
    assert [seed.name for seed in policy_seeds.IN_WHAT_IT_MAKES if not matching(seed, found)] == [], found


@pytest.mark.parametrize("root", [seeds.MINIMAL, seeds.THREE_ZONES])
@pytest.mark.parametrize("of", OF_OPERATIONS)
def test_mistakes_of_operations_are_found_each(of: str, root: str, attached: Attached, tmp_path: Path) -> None:
    planted = [seed for seed in OF_OPERATIONS[of] if seed.root == root]
    found = planned(attached, root, sown(tmp_path, *planted))
    assert [seed.name for seed in planted if not matching(seed, found)] == [], found


@pytest.mark.soak
@pytest.mark.parametrize("seed", SHOWN_BY_TERRAFORM, ids=lambda seed: seed.name)
def test_a_mistake_that_terraform_shows_is_found_alone(seed: Seed, attached: Attached, tmp_path: Path) -> None:
    assert_found(seed, planned(attached, seed.root, sown(tmp_path, seed)))


def test_a_mistake_makes_the_command_fail_and_is_shown_with_its_place_and_remedy(
    attached: Attached, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = sown(tmp_path, seeds.IN_THE_CONFIGURATION[0])
    status = command.main(["--stand-in", "--tree", str(tree), "modules/metadata"])
    shown = capsys.readouterr().out
    assert status == 1
    assert "modules/metadata/main.tf:" in shown and 'Did you mean "publicly_accessible"?' in shown


def test_without_terraform_it_says_loudly_that_nothing_was_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert command.main([]) == 0
    assert "NOT RUN: terraform is not on the PATH" in capsys.readouterr().out
    assert command.main(["--require"]) == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("agent  s3:GetObject\n", "line 1: role, right, on and where"),
        ("agent s3:GetObject  l0/*\n", "line 1: role, right, on and where"),
        (
            "# a title\n\nagent  s3:GetObject  l0/*\nagent  (s3:GetObject)  l1/*\n",
            "line 4: agent has s3:GetObject already",
        ),
    ],
)
def test_a_list_of_rights_that_cannot_be_read_is_refused_with_its_line(text: str, said: str) -> None:
    with pytest.raises(rights.DamagedRights, match=re.escape(said)):
        rights.listed(text)


def test_schemas_are_kept_of_what_is_used_and_of_nothing_else() -> None:
    kept = schema.load()
    assert (set(kept.resources), set(kept.data_sources)) == schemas.used_types(checks.TREE)
