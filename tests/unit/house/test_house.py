"""Rules for the tree as a whole that no linter checks: see docs/decisions/0001-house.md."""

from __future__ import annotations

import ast
import functools
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[3]
DECISIONS = ROOT / "docs" / "decisions"
FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70
FOLDER_MODULES_MAX = 16
API_FOLDERS = {"agents/handlers", "wire/messages"}
"""Folders with one module per Kafka API: Kafka decides their number, not we."""
ROOMS = ("agents", "compactor", "metadata", "runtime", "security", "siltstone", "spark_jobs", "storage", "wire")
S3_CLIENTS = {"aioboto3", "aiobotocore", "boto3", "botocore", "obstore"}

# Written in two halves, so that this file does not contain the text that it forbids.
FORBIDDEN_TEXTS = [
    "pypi" + ".org",
    "python" + "hosted",
    "npm" + "js",
    "arti" + "factory",
    "code" + "artifact",
    "extra-" + "index-url",
    "/ro" + "ot/",
    "/ho" + "me/",
    "/wo" + "rk/",
    "../sha" + "red",
]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
DOCUMENT_NAME = re.compile(r"docs/[\w./-]+\.md")
DECISION_NUMBER = re.compile(r"docs/decisions/(\d{4})")
PIN = re.compile(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!+_-]+( ; .+)?")

INTRUDERS = {
    "wire.intruder_with_a_loop": "import asyncio",
    "wire.intruder_upward": "import storage.objects",
    "storage.intruder_sideways": "import metadata.contract.store",
    "agents.intruder_with_sql": "import sqlalchemy",
    "agents.intruder_with_kernels": "import wire.kernels.scan",
    "agents.intruder_to_the_front_door": "import siltstone.kafka.client",
    "compactor.intruder_sideways": "import agents",
    "metadata.intruder_with_s3": "import boto3",
    "metadata.contract.intruder_with_postgres": "import metadata.postgres.tables",
    "wire.intruder_with_metrics": "import runtime.metrics",
    "siltstone.intruder_with_a_client": "import confluent_kafka",
    "siltstone.kafka.intruder_from_below": "import siltstone.cli.records.consume",
    "siltstone.demo.intruder_from_below": "import siltstone.cli.cost",
    "siltstone.intruder_with_spark": "import pyspark",
    "agents.intruder_with_traces": "import opentelemetry.trace",
    "storage.intruder_with_benchmarks": "import bench.table",
    "agents.intruder_with_deployments": "import infra.check",
}


def tracked(*suffixes: str) -> list[Path]:
    """Files that are in the repository or about to be added, text or not."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout.decode()
    paths = (ROOT / name for name in listed.split("\0") if name)
    return sorted(path for path in paths if path.is_file() and (not suffixes or path.suffix in suffixes))


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


def text_of(path: Path) -> str | None:
    """The text; None if the file is not text."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None


class Facts(NamedTuple):
    """The parts of a Python file that the rules look at."""

    functions: Sequence[tuple[str, int, int]]
    """(name, first line, number of lines)."""
    imports: Sequence[tuple[str, Sequence[str]]]
    """(module, names taken from it) of every import of the file, including those in functions and under
    TYPE_CHECKING.
    """

    @property
    def imported(self) -> frozenset[str]:
        return frozenset(module for module, _ in self.imports)


@functools.cache
def facts(path: Path) -> Facts:
    functions: list[tuple[str, int, int]] = []
    imports: list[tuple[str, Sequence[str]]] = []
    for node in statements(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            functions.append((node.name, node.lineno, node.end_lineno - node.lineno + 1))
        elif isinstance(node, ast.Import):
            imports += [(alias.name, ()) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            imports.append((node.module, [alias.name for alias in node.names]))
    return Facts(functions, imports)


def modules() -> dict[str, Path]:
    """The files of all rooms, by the name under which they are imported."""
    paths = (path for path in tracked(".py") if path.relative_to(ROOT).parts[0] in (*ROOMS, "bench", "infra"))
    return {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}


def imported_modules(path: Path, ours: Mapping[str, Path]) -> set[str]:
    """Those of our modules that a file imports."""
    found: set[str] = set()
    for module, names in facts(path).imports:
        # `from room import module` imports the module; `from module import name` imports the module that holds the
        # name.
        submodules = {f"{module}.{name}" for name in names} & ours.keys()
        found |= submodules or {module} & ours.keys()
    return found


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """All statements below the node. Expressions hold no statements and are most of a tree, so they are skipped."""
    for field in ("body", "handlers", "orelse", "finalbody", "cases"):
        for child in getattr(node, field, ()):
            yield child
            yield from statements(child)


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as run; run()", "--no-cache"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100)


def test_the_import_contracts_hold() -> None:
    outcome = lint_imports(ROOT)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


def test_broken_import_contracts_are_noticed(tmp_path: Path) -> None:
    # given a copy of the rooms, and in it imports that the contracts forbid
    shutil.copy(ROOT / ".importlinter", tmp_path)
    for path in tracked(".py"):
        if path.relative_to(ROOT).parts[0] in (*ROOMS, "bench", "infra"):
            copy = tmp_path / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)
    for module, line in INTRUDERS.items():
        (tmp_path / f"{module.replace('.', '/')}.py").write_text(f"{line}\n")
    # when the contracts are checked there
    outcome = lint_imports(tmp_path)
    # then every one of them is named
    assert outcome.returncode == 1, outcome.stdout + outcome.stderr
    assert [module for module in INTRUDERS if f"{module} ->" not in outcome.stdout] == []


def test_the_s3_client_is_imported_by_the_s3_store_alone() -> None:
    others = ("spark_jobs/submitters/emr_serverless.py", "runtime/secrets_manager.py")  # the same, for other services
    for path in tracked(".py"):
        if path.relative_to(ROOT).parts[0] in ROOMS and not shown(path).startswith(("storage/s3", *others)):
            assert not {name.split(".")[0] for name in facts(path).imported} & S3_CLIENTS, shown(path)


def test_no_file_is_longer_than_a_reader_can_hold() -> None:
    lengths = {shown(path): len(path.read_text(encoding="utf-8").splitlines()) for path in tracked(".py")}
    assert {name: lines for name, lines in lengths.items() if lines > FILE_LINES_MAX} == {}


def test_no_function_is_longer_than_a_screen() -> None:
    long: dict[str, int] = {}
    for path in tracked(".py"):
        for name, first, lines in facts(path).functions:
            if lines > FUNCTION_LINES_MAX:
                long[f"{shown(path)}:{first} {name}"] = lines
    assert long == {}


def test_no_folder_holds_more_modules_than_a_reader_can_hold() -> None:
    counts = Counter(shown(path.parent) for path in modules().values() if path.name != "__init__.py")
    crowded = {folder: count for folder, count in counts.items() if count > FOLDER_MODULES_MAX}
    assert {folder: count for folder, count in crowded.items() if folder not in API_FOLDERS} == {}


def test_no_two_files_import_each_other() -> None:
    """No ring of any length either: a file is understood after the files that it imports, so there must be an order."""
    ours = modules()
    graph = {name: imported_modules(path, ours) - {name} for name, path in ours.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_every_dependency_is_pinned_and_none_has_an_address() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert len(lines) > 50
    for line in lines:
        assert PIN.fullmatch(line), line
        assert "://" not in line and " @ " not in line, line


def test_no_tracked_file_names_a_registry_or_a_path_of_somebodys_machine() -> None:
    found: list[str] = []
    for path in tracked():
        text = text_of(path)
        if text is not None:
            found += [f"{shown(path)}: {forbidden}" for forbidden in FORBIDDEN_TEXTS if forbidden in text]
    assert found == []


def test_links_between_documents_lead_somewhere() -> None:
    broken: list[str] = []
    for path in tracked(".md"):
        for target in LINK.findall(path.read_text(encoding="utf-8")):
            if "://" in target or target.startswith(("#", "mailto:")):
                continue
            if not (path.parent / target.split("#")[0]).exists():
                broken.append(f"{shown(path)}: {target}")
    assert broken == []


def test_documents_named_in_code_and_prose_exist() -> None:
    missing: list[str] = []
    for path in tracked(".py", ".md", ".toml", ".sql"):
        text = path.read_text(encoding="utf-8")
        named = [name for name in DOCUMENT_NAME.findall(text) if not (ROOT / name).is_file()]
        numbered = [number for number in DECISION_NUMBER.findall(text) if not list(DECISIONS.glob(f"{number}-*.md"))]
        missing += [f"{shown(path)}: {reference}" for reference in named + numbered]
    assert missing == []


def test_make_tells_what_it_can_do() -> None:
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    targets = re.search(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert targets is not None
    assert [target for target in targets[1].split() if f"make {target} " not in shown] == []


def test_ci_runs_what_a_person_runs() -> None:
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    assert "install lint types test" in script.read_text()


def test_the_licence_is_apache_2_in_full() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text and "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text


def test_the_leaves_import_nothing_of_ours_when_loaded() -> None:
    # given a fresh interpreter, when an agent's leaves are imported, then nothing of the CLI is loaded with them
    code = (
        "import sys, runtime.errors, runtime.clock, runtime.ids\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('click', 'rich') or 'siltstone.cli' in name])"
    )
    outcome = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert outcome.stdout.strip() == "[]"
