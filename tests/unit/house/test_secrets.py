"""Secrets are compared by `hmac.compare_digest`: `==` ends at the first byte that differs, and its time tells where.
And no value shows one that it holds: a value's `repr` gets into logs, errors and reports of crashes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = ("security", "agents/security")
SECRET_WORDS = ("credential", "digest", "password", "proof", "salted", "secret", "signature", "token")
SECRET_NAMES = ("client_key", "nonce", "server_key", "stored_key")
ROOMS = ("agents", "compactor", "metadata", "runtime", "security", "siltstone", "spark_jobs", "storage", "wire")
HIDDEN_NAMES = ("auth_bytes", "client_key", "metadata_url", "password", "secret", "server_key", "stored_key", "token")
HIDING = {"repr": False, "secret": True}
"""The arguments by which `dataclasses.field`, the fields of `wire.schema` and settings leave a value out."""


def comparisons(source: str) -> Iterator[tuple[int, str]]:
    """(line, name) of every secret that is compared in plain."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare) and any(isinstance(each, ast.Eq | ast.NotEq) for each in node.ops):
            for operand in (node.left, *node.comparators):
                name = name_of(operand)
                if name.endswith(SECRET_NAMES) or any(word in name.split("_") for word in SECRET_WORDS):
                    yield node.lineno, name


def name_of(operand: ast.expr) -> str:
    while isinstance(operand, ast.Subscript):
        operand = operand.value
    if isinstance(operand, ast.Call):
        # A size is not secret: `len(proof)` is a call of `len`.
        operand = operand.func
    return operand.id if isinstance(operand, ast.Name) else operand.attr if isinstance(operand, ast.Attribute) else ""


def test_no_secret_is_compared_in_plain() -> None:
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    assert len(paths) > 5
    found = [
        f"{path.relative_to(ROOT)}:{line} {name}" for path in paths for line, name in comparisons(path.read_text())
    ]
    assert found == []


def test_the_rule_finds_what_it_should_and_lets_sizes_pass() -> None:
    for bad in (
        "password == given",
        "given != self.stored_key",
        "a.proof[:4] == b",
        "hmac.digest(k, m, 'sha256') == mac",
        "credential == other",
    ):
        assert list(comparisons(bad)), bad
    for good in ("len(proof) != 32", "hmac.compare_digest(proof, other)", "proof is None", "name == 'token'"):
        assert not list(comparisons(good)), good


def shown(source: str) -> Iterator[tuple[int, str]]:
    """(line, name) of every secret that the `repr` of a value shows."""
    if not any(name in source for name in HIDDEN_NAMES):
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef) and any("NamedTuple" in ast.unparse(base) for base in node.bases):
            yield from ((field.lineno, name) for field, name in secret_fields(node))
        if isinstance(node, ast.ClassDef) and any(
            ast.unparse(each).partition("(")[0] in ("dataclass", "message", "struct") for each in node.decorator_list
        ):
            yield from ((field.lineno, name) for field, name in secret_fields(node) if not is_hidden(field.value))


def secret_fields(node: ast.ClassDef) -> Iterator[tuple[ast.AnnAssign, str]]:
    for field in node.body:
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            is_value = {"str", "bytes", "Octets"} & set(ast.unparse(field.annotation).split(" | "))
            if is_value and field.target.id.endswith(HIDDEN_NAMES):
                yield field, field.target.id


def is_hidden(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Call) and any(
        word.arg in HIDING and isinstance(word.value, ast.Constant) and word.value.value is HIDING[word.arg]
        for word in value.keywords
    )


def test_no_value_shows_the_secrets_that_it_holds() -> None:
    paths = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    assert len(paths) > 300
    found = [f"{path.relative_to(ROOT)}:{line} {name}" for path in paths for line, name in shown(path.read_text())]
    assert found == []


def test_the_rule_for_values_finds_what_it_should() -> None:
    def value(field: str, decorator: str = "dataclass(frozen=True)") -> str:
        return f"@{decorator}\nclass Value:\n    {field}\n"

    for bad in (
        value("password: str"),
        value("cluster_secret: bytes | None = None"),
        value("stored_key: bytes = field(default=b'')"),
        value('auth_bytes: Octets = field(octets, "0+")', "message(api_key=36)"),
        "class Value(NamedTuple):\n    token: bytes\n",
    ):
        assert list(shown(bad)), bad
    for good in (
        value("password: str = field(repr=False)"),
        value('auth_bytes: Octets = field(octets, "0+", secret=True)', "message(api_key=36)"),
        value("passwords: PasswordChecks"),
        value("key: str"),
    ):
        assert not list(shown(good)), good
