"""All checks, in order, and their outcomes."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from infra.check import files, sources
from infra.check.providers import plugged
from infra.check.real.mirror import Mirror
from infra.check.report import Finding, Outcome, once
from infra.check.rules import access, data, identities, network, rights
from infra.check.rules.operations import alarms, events, hearing, lasting, lines
from infra.check.sources import Places
from infra.check.stack import NotKnownYet, Rule, Stack
from infra.check.terraform import Resource, Terraform, copied, is_root

HERE: Final = Path(__file__).parent
TREE: Final = HERE.parent / "terraform"
VALUES: Final = HERE / "roots"  # examples are complete; the root module is planned once for each file of values here
AT_ONCE: Final = 6  # the real provider waits by the clock, and uses 0.5 GiB
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
        alarms.alarms_are_heard,
        alarms.trouble_is_told,
        alarms.alarms_ring_when_they_should,
        alarms.alarms_watch_what_tells,
        alarms.alarms_are_of_what_is_here,
        alarms.probes_run,
        lines.filters_read_what_is_written,
        lines.alarms_have_their_figures,
        lines.figures_come_in_time,
        hearing.topics_are_written_by_this_account,
        hearing.topics_reach_somebody,
        hearing.prometheus_has_the_rules,
        hearing.alerts_are_heard,
        events.rules_of_events_act,
        events.rollouts_migrate,
        events.restores_are_drilled,
        events.failures_are_told,
        events.tasks_are_started_in_this_cluster,
        lasting.passwords_change_under_running_tasks,
        lasting.database_is_left_in_peace,
        lasting.hosts_are_replaced_and_go,
        lasting.everything_is_tagged_and_bounded,
    ),
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """The request: the tree, its roots to check (none: all), and whether to check its text and format, too."""

    tree: Path = TREE
    roots: tuple[str, ...] = ()
    text: bool = True
    checkov: bool = False
    mirror: Mirror | None = None
    """The real provider; None: its stand-in."""


def roots_of(tree: Path) -> list[str]:
    """The root module, and every example, as folders of the tree."""
    found = ["."] if (tree / "main.tf").exists() else []
    return found + sorted(path.parent.relative_to(tree).as_posix() for path in tree.glob("examples/*/main.tf"))


def values_for(root: str, values: Path) -> list[Path | None]:
    return [*sorted(values.glob("*.tfvars"))] if root == "." else [None]


def judged(stack: Stack, about: str, place_of: Callable[[Resource], str]) -> Iterator[Outcome]:
    """Apply the rules to the resources; one outcome for each group."""
    for name, rules in RULES.items():
        found: list[Finding] = []
        unjudged: list[str] = []
        for rule in rules:
            try:
                for violation in rule(stack):
                    found.append(Finding(name, place_of(violation.resource), violation.message, violation.remedy))  # noqa: PERF401 - those before the exception count
            except NotKnownYet as error:
                unjudged.append(f"{name}: {rule.__name__.replace('_', ' ')}: {error} is not known before the apply")
        yield Outcome(name, about, tuple(once(found)), unjudged=tuple(unjudged))


def of_root(
    terraform: Terraform, root: str, values: Path | None, tree: Path, *, initialized: Path | None = None
) -> Iterator[Outcome]:
    """All checks of one folder; `initialized` as in Terraform.rehearse."""
    rehearsal = terraform.rehearse(root, values, initialized=initialized)
    if terraform.is_real and rehearsal.resources:
        terraform.plan_again(rehearsal, values)
        terraform.destroy(rehearsal, values)
    for step, findings in rehearsal.findings.items():
        yield Outcome(step, rehearsal.shown(), findings)
    for step, reason in rehearsal.left_out.items():
        yield Outcome(step, rehearsal.shown(), not_run=reason)
    if rehearsal.resources:
        places = Places(tree, rehearsal.module_folders)
        yield from judged(Stack(rehearsal.root, rehearsal.resources), rehearsal.shown(), places.of)
    elif is_root(root):
        yield Outcome("policy", rehearsal.shown(), not_run="there is no state to read")


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


@contextmanager
def at_work(wanted: Wanted, binary: str) -> Generator[tuple[str, Iterator[Outcome]]]:
    """The provider's name, and the outcomes as they come.

    Raises TerraformFailed, NoServer, DamagedSchema, DamagedRights.
    """
    with tempfile.TemporaryDirectory(prefix="infra-check-") as folder:
        scratch = Path(folder)
        tree = copied(wanted.tree, scratch / "tree")
        values = Path(shutil.copytree(VALUES, scratch / "values"))
        with plugged(wanted.mirror, scratch, tree, values) as plugin:
            yield plugin.name, run(wanted, Terraform(binary, plugin, tree, scratch), values)


def run(wanted: Wanted, terraform: Terraform, values: Path) -> Iterator[Outcome]:
    if wanted.text:
        yield Outcome("fmt", ".", terraform.formatted())
        yield Outcome("variables", ".", sources.variables(wanted.tree))
        yield from files.outcomes()
        yield Outcome("test", ".", terraform.tested())
    yield from of_plans(terraform, wanted, values)
    if wanted.checkov:
        yield checkov(wanted.tree)


def of_plans(terraform: Terraform, wanted: Wanted, values: Path) -> Iterator[Outcome]:
    plans = [(root, file) for root in wanted.roots or roots_of(wanted.tree) for file in values_for(root, values)]

    def of_plan(plan: tuple[str, Path | None]) -> list[Outcome]:
        return list(of_root(terraform, *plan, wanted.tree))

    # Terraform spends much of its time waiting, and the roots are independent.
    with ThreadPoolExecutor(max_workers=AT_ONCE) as threads:
        for outcomes in threads.map(of_plan, plans):
            yield from outcomes
