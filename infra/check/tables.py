"""`python -m infra.check.tables`: writes the tables of inputs and outputs into infra/terraform/README.md, and the names
of Siltstone's settings into settings.txt beside it, by which a plan refuses others.

The tables have the form of terraform-docs (`markdown table --anchor=false --escape=false`), between its two markers, so
that a person who has that program may run it instead.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Final

from infra.check.checks import TREE
from infra.check.sources import Declaration, declarations
from runtime.settings.loading import declarations as settings

README: Final = "README.md"
SETTINGS: Final = "settings.txt"
BEGIN: Final = "<!-- BEGIN_TF_DOCS -->"
END: Final = "<!-- END_TF_DOCS -->"
ARGUMENT: Final = re.compile(
    r"^  (?P<name>type|default|description) += +(?P<value>.*(?:\n(?:    .*|  (?:[)}\]].*|EOT)))*)$", re.M
)
HEREDOC: Final = "<<-EOT"
ABSENT: Final = "n/a"


class NoPlace(Exception):
    """The page lacks one of the two markers."""


def arguments(declared: Declaration) -> dict[str, str]:
    """A block's own arguments, each with its whole expression as it is written."""
    return {found["name"]: found["value"] for found in ARGUMENT.finditer(declared.body)}


def described(declared: Declaration) -> str:
    text = arguments(declared).get("description", '""')
    # a quoted text of Terraform is one of JSON, but for the doubled signs before braces
    text = dedent("\n".join(text.splitlines()[1:-1])) if text.startswith(HEREDOC) else json.loads(text)
    for written, meant in (("$${", "${"), ("%%{", "%{"), ("|", "\\|"), ("\n", "<br/>")):
        text = text.replace(written, meant)
    return text


def code(expression: str) -> str:
    if "\n" in expression:
        return f"<pre>{expression.replace(chr(10), '<br/>')}</pre>"
    return f"`{expression}`"


def inputs(declared: list[Declaration]) -> Iterator[str]:
    yield "| Name | Description | Type | Default | Required |"
    yield "|------|-------------|------|---------|:--------:|"
    for one in declared:
        written = arguments(one)
        default = code(written["default"]) if "default" in written else ABSENT
        required = "no" if "default" in written else "yes"
        yield f"| {one.name} | {described(one)} | {code(written['type'])} | {default} | {required} |"


def outputs(declared: list[Declaration]) -> Iterator[str]:
    yield "| Name | Description |"
    yield "|------|-------------|"
    yield from (f"| {one.name} | {described(one)} |" for one in declared)


def tables(tree: Path) -> str:
    """Both tables of the root module, sorted by name."""
    declared = sorted(declarations(tree, "."), key=lambda one: one.name)
    of = {kind: [one for one in declared if one.kind == kind] for kind in ("variable", "output")}
    lines = ["## Inputs", "", *inputs(of["variable"]), "", "## Outputs", "", *outputs(of["output"])]
    return "\n".join(lines)


def setting_names() -> str:
    """The names of all settings but those of listeners, one a line."""
    return "".join(f"{name}\n" for name in sorted(name for name, _, _ in settings()))


def written(page: str, made: str) -> str:
    """The page with the tables between its markers. Raises NoPlace."""
    begin, end = page.find(BEGIN), page.find(END)
    if not 0 <= begin < end:
        raise NoPlace(f"{README} has no lines {BEGIN} and {END}, in this order")
    return f"{page[:begin]}{BEGIN}\n{made}\n{page[end:]}"


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m infra.check.tables", description=__doc__)
    parser.add_argument("--tree", type=Path, default=TREE, help="the configuration (default: infra/terraform)")
    tree: Path = parser.parse_args(words).tree
    page = tree / README
    try:
        page.write_text(written(page.read_text(encoding="utf-8"), tables(tree)), encoding="utf-8")
        (tree / SETTINGS).write_text(setting_names(), encoding="utf-8")
    except (NoPlace, OSError) as error:
        print(f"nothing was written: {error}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
