"""Secrets are compared by `hmac.compare_digest`: `==` ends at the first byte that differs, and its time tells where."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = ("security", "agents/security")
SECRET_WORDS = ("credential", "digest", "password", "proof", "salted", "secret", "signature", "token")
SECRET_NAMES = ("client_key", "nonce", "server_key", "stored_key")


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
