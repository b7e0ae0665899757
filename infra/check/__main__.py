"""`python -m infra.check`: checks the Terraform configuration without AWS and without a registry, or what somebody
planned or made with it.

Exit status: 0 if nothing was found, 1 if something was, 2 if the check itself failed, 3 with --require if Terraform is
missing, 4 with --shown if nothing was found but some rules could not be judged.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from infra.check import checks
from infra.check.real.account import NoServer
from infra.check.real.mirror import NoProvider, mirror_at_hand
from infra.check.report import Outcome, once, table
from infra.check.rules.rights import DamagedRights
from infra.check.shown import NotShown, stack_of
from infra.check.stand_in.schema import DamagedSchema
from infra.check.terraform import TerraformFailed

DESCRIPTION: Final = """\
Checks infra/terraform: Terraform plans and applies it to a stand-in for AWS, and
rules read what comes of it. Nothing is sent anywhere. It runs the real provider
where that is at hand, and else a stand-in for it; the first line says which.

Exit status: 0 nothing was found, 1 something was, 2 the check itself failed,
3 with --require if Terraform is missing, 4 with --shown if nothing was found but
some rules could not be judged.
"""
CLOSING: Final = "Nothing was sent to AWS, and what only AWS can refuse was not checked: see infra/check/README.md."
FOUND: Final = 1
FAILED: Final = 2
NO_TERRAFORM: Final = 3
UNJUDGED: Final = 4
EXAMPLES: Final = """\
Examples:
  python -m infra.check                         everything
  python -m infra.check examples/minimal        one root module, and no more
  python -m infra.check modules/storage         a module by itself: init, validate
  python -m infra.check --require               fail if Terraform is missing
  python -m infra.check --stand-in              seconds instead of minutes
  terraform show -json | python -m infra.check --shown -
                                                the rules on what you have made
"""
BANNER: Final = """\
************************************************************************
**  NOT RUN: terraform is not on the PATH                             **
**  Nothing of infra/terraform was checked. Install Terraform 1.9 or  **
**  newer and run `make infra-check` again.                           **
************************************************************************"""


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m infra.check",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("roots", nargs="*", metavar="ROOT", help="folders of the tree to plan; default: all")
    made.add_argument("--tree", type=Path, default=checks.TREE, help="the configuration (default: infra/terraform)")
    made.add_argument("--mirror", type=Path, help="a filesystem mirror with the AWS provider (default: a usual place)")
    made.add_argument("--stand-in", action="store_true", help="use the stand-in though the provider is at hand")
    made.add_argument("--shown", metavar="FILE", help="judge what terraform show -json printed (-: standard input)")
    made.add_argument("--require", action="store_true", help="fail if Terraform is missing")
    return made


def say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


def summary(outcomes: list[Outcome], closing: str) -> int:
    """Print the table, the findings and what was not judged; returns the exit status."""
    findings = once(finding for outcome in outcomes for finding in outcome.findings)
    unjudged = [line for outcome in outcomes for line in outcome.unjudged]
    say(table(outcomes))
    for finding in findings:
        say("\n" + finding.shown())
    for line in unjudged:
        say(f"\nNOT JUDGED  {line}")
    if findings:
        say(f"\nFAILED: {len(findings)} found")
        return FOUND
    if unjudged:
        say(f"\nNothing was found, but {len(unjudged)} rules could not be judged: show the state after the apply, too.")
        return UNJUDGED
    say(f"\nOK. {closing}")
    return 0


def told(outcomes: Iterable[Outcome]) -> Iterator[Outcome]:
    """The outcomes. Says of each folder that it is done, because the real provider takes minutes."""
    folder = None
    for outcome in outcomes:
        if outcome.about != folder:
            folder = outcome.about
            print(f"{folder}: checked", file=sys.stderr, flush=True)  # noqa: T201
        yield outcome


def judge(shown: str) -> int:
    """The rules on a state or plan that somebody else made."""
    name = "standard input" if shown == "-" else shown
    try:
        text = sys.stdin.read() if shown == "-" else Path(shown).read_text(encoding="utf-8")
        stack = stack_of(text, name)
        outcomes = list(checks.judged(stack, name, lambda resource: resource.address))
    except (NotShown, DamagedRights, OSError, UnicodeDecodeError) as error:
        say(f"the check failed, which says nothing about {name}: {error}")
        return FAILED
    return summary(outcomes, "All rules were judged.")


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    if options.shown:
        return judge(options.shown)
    binary = shutil.which("terraform")
    if binary is None:
        say(BANNER)
        return NO_TERRAFORM if options.require else 0
    roots = tuple(root.rstrip("/") for root in options.roots)
    missing = [root for root in roots if not (options.tree / root).is_dir()]
    if missing:
        say(f"no such folder in {options.tree}: {', '.join(missing)}")
        return FAILED
    try:
        mirror = None if options.stand_in else mirror_at_hand(options.mirror)
        wanted = checks.Wanted(tree=options.tree, roots=roots, text=not roots, checkov=not roots, mirror=mirror)
        with checks.at_work(wanted, binary) as (provider, outcomes):
            say(f"with {provider}\n")
            return summary(list(told(outcomes)), CLOSING)
    except (NoProvider, NoServer, TerraformFailed, DamagedSchema, DamagedRights, OSError) as error:
        say(f"the check failed, which says nothing about the configuration: {error}")
        return FAILED


if __name__ == "__main__":
    sys.exit(main())
