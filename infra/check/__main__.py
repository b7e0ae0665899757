"""`python -m infra.check`: checks the Terraform configuration without AWS and without a registry.

Exit status: 0 if nothing was found, 1 if something was, 2 if the check itself failed, 3 with --require if Terraform is
missing.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import Final

from infra.check import checks
from infra.check.report import Outcome, once, table
from infra.check.rules.rights import DamagedRights
from infra.check.stand_in.schema import DamagedSchema
from infra.check.terraform import TerraformFailed

DESCRIPTION: Final = """\
Checks infra/terraform: Terraform plans it against a stand-in for AWS, and rules
read the plan. Nothing is sent anywhere.

Exit status: 0 nothing was found, 1 something was, 2 the check itself failed,
3 with --require if Terraform is missing.
"""
EXAMPLES: Final = """\
Examples:
  python -m infra.check                         everything
  python -m infra.check examples/minimal        one root module, and no more
  python -m infra.check modules/storage         a module by itself: init, validate
  python -m infra.check --require               fail if Terraform is missing
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
    made.add_argument("--require", action="store_true", help="fail if Terraform is missing")
    return made


def say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


def summary(outcomes: list[Outcome]) -> int:
    """Print the table and the findings; returns the exit status."""
    findings = once(finding for outcome in outcomes for finding in outcome.findings)
    say(table(outcomes))
    for finding in findings:
        say("\n" + finding.shown())
    if findings:
        say(f"\nFAILED: {len(findings)} found")
        return 1
    say("\nOK. Nothing was sent to AWS, and what only AWS can refuse was not checked: see infra/check/README.md.")
    return 0


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    binary = shutil.which("terraform")
    if binary is None:
        say(BANNER)
        return 3 if options.require else 0
    roots = tuple(root.rstrip("/") for root in options.roots)
    missing = [root for root in roots if not (options.tree / root).is_dir()]
    if missing:
        say(f"no such folder in {options.tree}: {', '.join(missing)}")
        return 2
    wanted = checks.Wanted(tree=options.tree, roots=roots, text=not roots, checkov=not roots)
    try:
        return summary(list(checks.run(wanted, binary)))
    except (TerraformFailed, DamagedSchema, DamagedRights, OSError) as error:
        say(f"the check failed, which says nothing about the configuration: {error}")
        return 2


if __name__ == "__main__":
    sys.exit(main())
