"""The rules for the chart, Compose and the image: green on the tree, red on each mistake that is planted in a copy."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from infra.check import files

PARTS = ("helm", "compose", "image")
AGENTS = "helm/siltstone/templates/agents.yaml"
COMMON = "helm/siltstone/templates/_common.tpl"
LISTENERS = "helm/siltstone/templates/_listeners.tpl"
POLICIES = "helm/siltstone/templates/networkpolicies.yaml"
COMPOSE = "compose/compose.yaml"
DOCKERFILE = "image/Dockerfile"


@dataclass(frozen=True)
class Planted:
    """`old` stands in `file` and becomes `new` everywhere; then `message` is found, and nothing else."""

    name: str
    file: str
    old: str
    new: str
    message: str


PLANTED = [
    Planted(
        "a shared service account",
        AGENTS,
        "$name }}-agent\n      {{- inc",
        "$name }}-compactor\n      {{- inc",
        "share",
    ),
    Planted("no policy for agents", POLICIES, "component: agent\n  policy", "component: agents\n  policy", "to agents"),
    Planted("compactors that send anywhere", POLICIES, "[Ingress, Egress]", "[Ingress]", "to compactors"),
    Planted(
        "insecure",
        AGENTS,
        "            - {name: SILTSTONE_ACL",
        "            - {name: SILTSTONE_INSECURE, value: x}\n            - {name: SILTSTONE_ACL",
        "insecure is set",
    ),
    Planted("an image by its tag", COMMON, "@{{ .Values.image.digest }}", ":{{ .Values.image.tag }}", "by its digest"),
    Planted("a Postgres that may be another one", COMMON, "verify-full", "require", "sslmode=require"),
    Planted("a listener for everybody", LISTENERS, "SASL_SSL", "SASL_PLAINTEXT", "not authenticated by TLS"),
    Planted("certificates that nobody asks for", LISTENERS, "value: required", "value: requested", "not authenticated"),
    Planted(
        "no ACLs", AGENTS, 'SILTSTONE_ACL_MODE, value: "on"', 'SILTSTONE_ACL_MODE, value: "shadow"', "enforce ACLs"
    ),
    Planted(
        "no certificate", AGENTS, "- {name: tls, mountPath: /etc/siltstone/tls, readOnly: true}", "", "not mounted"
    ),
    Planted(
        "a known password",
        COMPOSE,
        "${GRAFANA_PASSWORD:?run infra/compose/make_passwords.py}",
        "${GRAFANA_PASSWORD:-x}",
        "everybody knows: GF_SECURITY",
    ),
    Planted("a port for all", COMPOSE, '"127.0.0.1:9093:9093"', '"9093:9093"', "from other machines: 9093"),
    Planted("compactors as the owner", COMPOSE, "//silt_compactor@", "//siltstone@", "compactors use the role"),
    Planted(
        "a base by its tag", DOCKERFILE, "ARG PYTHON_IMAGE\n#", "ARG PYTHON_IMAGE=python:3.11\n#", "base is not named"
    ),
    Planted("a base that is not checked", DOCKERFILE, "*@sha256:*) ;;", "*) ;;", "base is not named"),
    Planted(
        "packages without hashes",
        DOCKERFILE,
        "install --require-hashes --no-deps -r requirements",
        "install -r req",
        "without hashes",
    ),
    Planted("pip in the image", DOCKERFILE, "pip uninstall --yes", "pip list", "pip is left"),
]


def messages(infra: Path) -> list[str]:
    return [each.message for outcome in files.outcomes(infra) for each in outcome.findings]


def test_the_tree_is_green() -> None:
    assert messages(files.INFRA) == []


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.name)
def test_a_mistake_is_found(planted: Planted, tmp_path: Path) -> None:
    for part in PARTS:
        shutil.copytree(files.INFRA / part, tmp_path / part)
    path = tmp_path / planted.file
    text = path.read_text()
    assert planted.old in text, f"{planted.file} lacks {planted.old!r}: renew the mistake"
    path.write_text(text.replace(planted.old, planted.new))
    found = messages(tmp_path)
    assert any(planted.message in each for each in found), found
