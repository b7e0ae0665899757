"""Reads the configuration's own text: where a resource is declared, and what its variables lack.

`terraform fmt -check` is the first check, so the files are in Terraform's canonical format by then: a block starts in
the first column and ends with a brace there, and its own arguments are indented by two columns. So no parser of the
language is needed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from infra.check.report import Finding
from infra.check.terraform import Resource

HEADER: Final = re.compile(r'^(resource|data|variable|output) "([\w-]+)"(?: "([\w-]+)")? \{(.*)$')
ROOT_VARIABLES_MAX: Final = 25
INDEX: Final = re.compile(r"\[[^\]]*\]")


@dataclass(frozen=True, slots=True)
class Declaration:
    kind: str
    name: str  # of a resource: type.name; of a data source: data.type.name
    place: str  # file:line in the tree
    body: str


def declarations(tree: Path, folder: str) -> Iterator[Declaration]:
    """All of one module's folder."""
    for path in sorted((tree / folder).glob("*.tf")):
        lines = path.read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines):
            header = HEADER.match(line)
            if header is None:
                continue
            kind, first, second, rest = header.groups()
            end = number if rest.endswith("}") else lines.index("}", number)
            body = rest if end == number else "\n".join(lines[number + 1 : end])
            name = first if second is None else f"{'data.' if kind == 'data' else ''}{first}.{second}"
            yield Declaration(kind, name, f"{path.relative_to(tree)}:{number + 1}", body)


class Places:
    """Where resources are declared: from an address to file:line and the address."""

    def __init__(self, tree: Path, module_folders: dict[str, str]) -> None:
        self._tree = tree
        self._folders = module_folders
        self._declared: dict[str, dict[str, str]] = {}

    def of(self, resource: Resource) -> str:
        folder = self._folders.get(INDEX.sub("", resource.module))
        if folder is None:
            return resource.address
        if folder not in self._declared:
            found = declarations(self._tree, folder)
            self._declared[folder] = {one.name: one.place for one in found if one.kind in ("resource", "data")}
        place = self._declared[folder].get(f"{resource.type}.{resource.name}")
        return f"{place} ({resource.address})" if place else resource.address


def variables(tree: Path) -> tuple[Finding, ...]:
    """Every variable and output must have a description. The root module's variables must also be validated and few;
    examples and modules only pass values on.
    """
    folders = sorted(
        {path.parent.relative_to(tree).as_posix() for path in tree.rglob("*.tf") if ".terraform" not in path.parts}
    )
    return tuple(finding for folder in folders for finding in of_folder(tree, folder))


def of_folder(tree: Path, folder: str) -> Iterator[Finding]:
    declared = list(declarations(tree, folder))
    own = [one for one in declared if one.kind == "variable"]
    if "modules" not in Path(folder).parts and len(own) > ROOT_VARIABLES_MAX:
        message = f"{len(own)} variables at the top: more than {ROOT_VARIABLES_MAX}"
        yield Finding(
            "variables",
            folder,
            message,
            "make a default of a variable that nobody sets, or join related variables into an object",
        )
    for one in declared:
        if one.kind in ("variable", "output") and not argument(one.body, "description"):
            yield Finding("variables", one.place, f"{one.kind} {one.name} is not described", "give it a description")
    for one in own:
        kind = argument(one.body, "type")
        if not kind or kind == "any":
            yield Finding("variables", one.place, f"variable {one.name} has no type", "give it a type, not any")
        elif folder == "." and kind != "bool" and not re.search(r"^  validation \{", one.body, re.M):
            yield Finding("variables", one.place, f"variable {one.name} is not validated", "give it a validation block")


def argument(body: str, name: str) -> str:
    """The value of a block's own argument, its first line; "" if it is absent."""
    found = re.search(rf"^(?:  | ?){name} += +(.+?)( \}})?$", body, re.M)
    return found[1].strip() if found else ""
