"""All checks, in order, and their outcomes."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from infra.check import files, sources
from infra.check.report import Finding, Outcome, once
from infra.check.rules import access, data, identities, network, operations, rights
from infra.check.sources import Places
from infra.check.stack import Rule, Stack
from infra.check.stand_in import provider, schema
from infra.check.terraform import Rehearsal, Terraform, copied, is_root

HERE: Final = Path(__file__).parent
TREE: Final = HERE.parent / "terraform"
VALUES: Final = HERE / "roots"  # examples are complete; the root module is planned once for each file of values here
AT_ONCE: Final = 4
CHECKOV_SECONDS_MAX: Final = 300

RULES: Final[dict[str, tuple[Rule, ...]]] = {
    "buckets": (
        data.bucket_is_closed,
        data.bucket_policy_admits_no_stranger,
        data.bucket_is_encrypted,
        data.bucket_wants_tls,
        data.bucket_is_written_once,
        data.bucket_forgets_what_is_deleted,
        data.bucket_is_read_at_once,
    ),
    "database": (
        data.database_is_private,
        data.database_keeps_its_password_to_itself,
        data.database_wants_tls,
        data.database_outlives_a_mistake,
    ),
    "identities": (
        identities.clients_prove_who_they_are,
        identities.postgres_is_verified,
        identities.processes_have_roles_of_their_own,
        identities.images_are_of_one_build,
    ),
    "rights": (
        access.no_wildcard_actions,
        access.no_wildcard_resources,
        access.only_the_janitor_deletes,
        access.roles_are_passed_by_name,
        access.roles_are_for_services,
        access.no_wide_managed_policies,
        rights.rights_are_those_of_the_list,
    ),
    "internal only": (
        network.load_balancers_are_internal,
        network.no_open_ingress,
        network.no_public_addresses,
    ),
    "tasks": (
        network.tasks_have_no_more_rights_than_they_need,
        network.no_plaintext_secrets,
        network.settings_are_siltstones,
        network.tasks_have_time_to_drain,
        network.agents_are_replaced_in_batches,
        network.tasks_are_logged,
        network.instances_want_tokens,
        data.disks_are_encrypted,
        data.logs_end_some_day,
    ),
    "operations": (
        operations.alarms_are_heard,
        operations.trouble_is_told,
        operations.alarms_have_their_figures,
        operations.prometheus_has_the_rules,
        operations.topics_are_written_by_this_account,
        operations.passwords_change_under_running_tasks,
        operations.database_is_left_in_peace,
        operations.hosts_are_replaced_and_go,
        operations.everything_is_tagged_and_bounded,
        operations.rollouts_migrate,
        operations.restores_are_drilled,
    ),
}

Said = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Wanted:
    """The request: the tree, its roots to check (none: all), and whether to check its text and format, too."""

    tree: Path = TREE
    roots: tuple[str, ...] = ()
    text: bool = True
    checkov: bool = False


def roots_of(tree: Path) -> list[str]:
    """The root module, and every example, as folders of the tree."""
    found = ["."] if (tree / "main.tf").exists() else []
    return found + sorted(path.parent.relative_to(tree).as_posix() for path in tree.glob("examples/*/main.tf"))


def values_for(root: str) -> list[Path | None]:
    return [*sorted(VALUES.glob("*.tfvars"))] if root == "." else [None]


def policy(rehearsal: Rehearsal, tree: Path) -> Iterator[Outcome]:
    """Apply the rules to the planned resources; one outcome for each group."""
    stack = Stack(rehearsal.root, rehearsal.resources)
    places = Places(tree, rehearsal.module_folders)
    for name, rules in RULES.items():
        found = [
            Finding(name, places.of(violation.resource), violation.message, violation.remedy)
            for rule in rules
            for violation in rule(stack)
        ]
        yield Outcome(name, rehearsal.shown(), tuple(once(found)))


def of_root(
    terraform: Terraform, root: str, values: Path | None, tree: Path, *, initialized: Path | None = None
) -> Iterator[Outcome]:
    """All checks of one folder; `initialized` as in Terraform.rehearse."""
    rehearsal = terraform.rehearse(root, values, initialized=initialized)
    for step, findings in rehearsal.findings.items():
        yield Outcome(step, rehearsal.shown(), findings)
    if rehearsal.failed():
        yield Outcome("policy", rehearsal.shown(), not_run="there is no plan to read")
    elif is_root(root):
        yield from policy(rehearsal, tree)


def checkov(tree: Path) -> Outcome:
    """A second opinion, if checkov is installed."""
    binary = shutil.which("checkov")
    if binary is None:
        return Outcome("checkov", ".", not_run="checkov is not on the PATH (a second opinion, not needed)")
    command = [binary, "--directory", str(tree), "--framework", "terraform", "--compact", "--quiet", "--skip-download"]
    outcome = subprocess.run(  # noqa: S603
        command, capture_output=True, text=True, timeout=CHECKOV_SECONDS_MAX, check=False
    )
    if outcome.returncode == 0:
        return Outcome("checkov", ".")
    return Outcome("checkov", ".", (Finding("checkov", ".", outcome.stdout.strip()[-4000:], "see what it says"),))


def run(wanted: Wanted, binary: str) -> Iterator[Outcome]:
    """The outcomes as they come. Raises TerraformFailed, DamagedSchema, DamagedRights."""
    with tempfile.TemporaryDirectory(prefix="infra-check-") as scratch, provider.serving(schema.load()) as reattach:
        terraform = Terraform(binary, reattach, copied(wanted.tree, Path(scratch) / "tree"), Path(scratch))
        if wanted.text:
            yield Outcome("fmt", ".", terraform.formatted())
            yield Outcome("variables", ".", sources.variables(wanted.tree))
            yield from files.outcomes()
        plans: list[tuple[str, Path | None]] = [
            (root, values) for root in wanted.roots or roots_of(wanted.tree) for values in values_for(root)
        ]

        def of_plan(plan: tuple[str, Path | None]) -> list[Outcome]:
            return list(of_root(terraform, *plan, wanted.tree))

        # Terraform spends much of its time waiting, and the roots are independent.
        with ThreadPoolExecutor(max_workers=AT_ONCE) as threads:
            for outcomes in threads.map(of_plan, plans):
                yield from outcomes
    if wanted.checkov:
        yield checkov(wanted.tree)
