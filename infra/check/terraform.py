"""Runs Terraform on a copy of the tree, with the stand-in for the AWS provider or with the real one.

Order: init (it asks no registry), validate, plan, then an apply of that plan, whose state is read. The real provider
then plans again, which must change nothing, and destroys what it made. A step that fails ends the row, because the next
would only repeat its error. Terraform writes into a folder of its own for each row, so that rows may run at the same
time.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from infra.check.real import drift
from infra.check.report import Finding

COMMAND_SECONDS_MAX: Final = 900  # the provider waits minutes for a database, whoever answers
KEPT_VARIABLES: Final = ("PATH", "HOME", "TMPDIR", "LANG", "LC_ALL")
LEFT_OUT: Final = (".terraform", "*.tfstate*", ".terraform.lock.hcl")
BACKEND_OVERRIDE: Final = 'terraform {\n  backend "local" {}\n}\n'
MODULE_CALLS_FILE: Final = "modules/modules.json"
AGAIN: Final = "second plan"
DESTROY: Final = "destroy"
CHANGED: Final = 2  # exit status of `plan -detailed-exitcode`


@dataclass(frozen=True, slots=True)
class Plugin:
    """The provider that Terraform runs: its name for people, and the environment that makes Terraform take it."""

    name: str
    settings: Mapping[str, str]
    is_real: bool = False


@dataclass(frozen=True, slots=True)
class Resource:
    """One resource or data source after the rehearsed apply."""

    address: str
    type: str  # `data.TYPE` for a data source
    name: str
    module: str  # "" for the root
    values: dict[str, Any]


@dataclass(slots=True)
class Rehearsal:
    """Terraform's result for one root module: findings of the step that failed, or the resources that it would make."""

    root: str
    values: str  # name of the file of values, or ""
    findings: dict[str, tuple[Finding, ...]] = field(
        default_factory=dict[str, tuple[Finding, ...]]
    )  # by step, in order
    resources: tuple[Resource, ...] = ()
    outputs: dict[str, Any] = field(default_factory=dict[str, Any])
    module_folders: dict[str, str] = field(default_factory=dict[str, str])  # module without keys -> folder in the tree
    left_out: dict[str, str] = field(default_factory=dict[str, str])  # a step that was not run, and the reason

    def shown(self) -> str:
        return f"{self.root} ({self.values})" if self.values else self.root

    def failed(self) -> bool:
        return any(self.findings.values())


class TerraformFailed(Exception):
    """Terraform did not do as asked and gave no diagnostics."""


def common(own: Path) -> list[str]:
    """The options of every step that reads or writes the state."""
    return ["-json", "-no-color", "-lock=false", f"-state={own / 'state'}"]


def given_values(values: Path | None) -> list[str]:
    return [f"-var-file={values}"] if values is not None else []


def is_protected(resources: tuple[Resource, ...]) -> bool:
    """Whether something in it refuses to be deleted."""
    return any(
        resource.values.get("deletion_protection") is True or resource.values.get("enable_deletion_protection") is True
        for resource in resources
    )


def is_root(folder: str) -> bool:
    """A module can not be planned by itself: its variables are other modules' outputs."""
    return "modules" not in Path(folder).parts


def copied(tree: Path, to: Path) -> Path:
    """The tree without what runs of Terraform left in it. A remote backend becomes a local one."""
    shutil.copytree(tree, to, ignore=shutil.ignore_patterns(*LEFT_OUT))
    for folder in {path.parent for path in to.rglob("*.tf") if 'backend "' in path.read_text(encoding="utf-8")}:
        (folder / "infra_check_override.tf").write_text(BACKEND_OVERRIDE, encoding="utf-8")
    return to


class Terraform:
    """Terraform with one provider, in a tree that it may write to."""

    def __init__(self, binary: str, plugin: Plugin, tree: Path, scratch: Path) -> None:
        self._binary = binary
        self.is_real = plugin.is_real
        self._tree = tree
        self._scratch = scratch
        no_settings = scratch / "terraformrc"
        # An empty file: the user's own settings may name mirrors or credentials.
        no_settings.touch()
        # Nothing else of the caller's environment: no credentials, and no TF_ variables that would change the plan.
        kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
        self._environment = {
            **kept,
            "TF_CLI_CONFIG_FILE": str(no_settings),
            "TF_IN_AUTOMATION": "1",
            "TF_INPUT": "0",
            "CHECKPOINT_DISABLE": "1",
            # Runs are short: fewer garbage collections save a fifth of the CPU and cost 40 MiB of memory.
            "GOGC": "400",
            **plugin.settings,
        }

    def _run(self, folder: Path, data: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(  # noqa: S603
            [self._binary, *arguments],
            cwd=folder,
            env={**self._environment, "TF_DATA_DIR": str(data)},
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS_MAX,
            check=False,
        )

    def formatted(self) -> tuple[Finding, ...]:
        outcome = self._run(self._tree, self._scratch, "fmt", "-no-color", "-check", "-recursive", "-list=true")
        remedy = "terraform fmt -recursive infra/terraform"
        if outcome.returncode == 2:  # not even read
            return (Finding("fmt", ".", outcome.stderr.strip(), "mend the syntax"),)
        # 3 means that some files are not formatted; their names are on stdout.
        if outcome.returncode not in (0, 3):
            raise TerraformFailed(f"terraform fmt: {outcome.stderr.strip()}")
        return tuple(Finding("fmt", name, "is not formatted", remedy) for name in outcome.stdout.split())

    def tested(self) -> tuple[Finding, ...]:
        """The tests of the configuration itself (`terraform test`), which mock the provider."""
        data = self._scratch / "tests"
        found = self.initialize(".", data)
        return found or self._said("test", self._tree, self._run(self._tree, data, "test", "-json", "-no-color"))

    def initialize(self, root: str, data: Path) -> tuple[Finding, ...]:
        """Finds the modules and writes them to the data folder, which trees with the same modules may use."""
        outcome = self._run(self._tree / root, data, "init", "-json", "-no-color")
        return self._said("init", self._tree / root, outcome)

    def rehearse(self, root: str, values: Path | None = None, *, initialized: Path | None = None) -> Rehearsal:
        """All steps for a folder of the tree, with a file of values for its variables.

        `initialized` is the data folder of a tree with the same modules: init is left out then.
        """
        folder = self._tree / root
        rehearsal = Rehearsal(root, values=values.stem if values else "")
        own = self._own(rehearsal)
        data = initialized or own / "data"
        if initialized is None:
            rehearsal.findings["init"] = self.initialize(root, data)
            if rehearsal.failed():
                return rehearsal
        for step, arguments in self._steps(root, values, own):
            found = self._said(step, folder, self._run(folder, data, *arguments))
            rehearsal.findings[step] = found
            if found:
                return rehearsal
        if is_root(root):
            self._read(rehearsal, folder, data, own / "state")
        return rehearsal

    def _own(self, rehearsal: Rehearsal) -> Path:
        own = self._scratch / rehearsal.shown().replace("/", "_")
        own.mkdir(exist_ok=True)
        return own

    def _steps(self, root: str, values: Path | None, own: Path) -> Iterator[tuple[str, list[str]]]:
        yield "validate", ["validate", "-json", "-no-color"]
        if is_root(root):
            yield "plan", ["plan", *common(own), f"-out={own / 'plan'}", *given_values(values)]
            yield "apply", ["apply", *common(own), str(own / "plan")]

    def _read(self, rehearsal: Rehearsal, folder: Path, data: Path, state: Path) -> None:
        made = self._made(folder, data, state)
        rehearsal.resources = tuple(resources_of(made.get("root_module", {})))
        rehearsal.outputs = {name: output["value"] for name, output in made.get("outputs", {}).items()}
        rehearsal.module_folders = self._module_folders(folder, data)

    def plan_again(self, rehearsal: Rehearsal, values: Path | None = None) -> None:
        """A second plan, which must be empty, after a rehearsal with the real provider."""
        folder, own = self._tree / rehearsal.root, self._own(rehearsal)
        second = own / "second"
        words = [*common(own), "-detailed-exitcode", f"-out={second}", *given_values(values)]
        outcome = self._run(folder, own / "data", "plan", *words)
        changes = self._changes(folder, own / "data", str(second)) if outcome.returncode == CHANGED else ()
        rehearsal.findings[AGAIN] = changes or self._said(AGAIN, folder, outcome, well=(0, CHANGED))

    def destroy(self, rehearsal: Rehearsal, values: Path | None = None) -> None:
        """The end of all that a rehearsal with the real provider made, unless it is protected from it."""
        if is_protected(rehearsal.resources):
            rehearsal.left_out[DESTROY] = "deletion_protection is true here"
            return
        folder, own = self._tree / rehearsal.root, self._own(rehearsal)
        words = [*common(own), "-auto-approve", *given_values(values)]
        outcome = self._run(folder, own / "data", DESTROY, *words)
        rehearsal.findings[DESTROY] = self._said(DESTROY, folder, outcome)

    def _changes(self, folder: Path, data: Path, plan: str) -> tuple[Finding, ...]:
        told = self._told(folder, data, "show", "-json", plan)
        remedy = "write the value as AWS gives it back, or leave it out"
        return tuple(
            Finding(AGAIN, address, f"each plan would change {', '.join(names)}", remedy)
            for address, names in drift.changes(told)
        )

    def _made(self, folder: Path, data: Path, state: Path) -> dict[str, Any]:
        return self._told(folder, data, "show", "-json", str(state)).get("values", {})

    def _told(self, folder: Path, data: Path, *arguments: str) -> dict[str, Any]:
        told = self._run(folder, data, *arguments)
        if told.returncode:
            raise TerraformFailed(f"terraform {arguments[0]}: {told.stderr.strip()}")
        return json.loads(told.stdout)

    def schemas(self) -> dict[str, Any]:
        """The output of `terraform providers schema` for the root module. Raises TerraformFailed."""
        data = self._scratch / "data"
        if found := self.initialize(".", data):
            raise TerraformFailed(found[0].shown())
        return self._told(self._tree, data, "providers", "schema", "-json")

    def _module_folders(self, folder: Path, data: Path) -> dict[str, str]:
        known = data / MODULE_CALLS_FILE
        calls: list[dict[str, str]] = json.loads(known.read_text(encoding="utf-8"))["Modules"] if known.exists() else []
        folders = {"": self._shown(folder)}
        for call in calls:
            if call["Key"]:
                address = "module." + call["Key"].replace(".", ".module.")
                folders[address] = self._shown(folder / call["Dir"])
        return folders

    def _shown(self, path: Path) -> str:
        return os.path.relpath(path.resolve(), self._tree.resolve())

    def _said(
        self, step: str, folder: Path, outcome: subprocess.CompletedProcess[str], *, well: tuple[int, ...] = (0,)
    ) -> tuple[Finding, ...]:
        found = self._findings(step, folder, outcome.stdout)
        if found or outcome.returncode in well:
            return found
        text = (outcome.stderr or outcome.stdout).strip()
        return (Finding(step, self._shown(folder), text, f"run terraform {step} in it"),)

    def _findings(self, step: str, folder: Path, output: str) -> tuple[Finding, ...]:
        """Errors in what Terraform printed: one JSON document (validate), or one a line."""
        listed: list[dict[str, Any]]
        if step == "validate":
            listed = json.loads(output)["diagnostics"] if output.startswith("{") else []
        else:
            lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
            listed = [line["diagnostic"] for line in lines if line.get("type") == "diagnostic"]
        return tuple(self._finding(step, folder, one) for one in listed if one["severity"] == "error")

    def _finding(self, step: str, folder: Path, diagnostic: dict[str, Any]) -> Finding:
        place = self._shown(folder)
        where: dict[str, Any] | None = diagnostic.get("range")
        if where is not None:
            place = f"{self._shown(folder / where['filename'])}:{where['start']['line']}"
        snippet: dict[str, Any] = diagnostic.get("snippet") or {}
        about = snippet.get("context") or diagnostic.get("address")
        message = diagnostic["summary"] + (f" ({about})" if about else "")
        detail = " ".join(diagnostic.get("detail", "").split())
        return Finding(step, place, message, detail or "see the summary")


def resources_of(module: dict[str, Any]) -> list[Resource]:
    """All resources of a module of a state, those of the modules in it too."""
    found = [
        Resource(
            address=item["address"],
            type=item["type"] if item["mode"] == "managed" else f"data.{item['type']}",
            name=item["name"],
            module=module.get("address", ""),
            values=item.get("values", {}),  # Terraform leaves it out where nothing is known yet
        )
        for item in module.get("resources", [])
    ]
    for child in module.get("child_modules", []):
        found += resources_of(child)
    return found
