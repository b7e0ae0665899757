"""Rules for what is text: the chart, the Compose file and the Dockerfile. They need neither Helm nor Docker.

The chart's templates are read as they are written. `helm template` would show what they become with one set of values;
what stands here holds for all of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, cast

import yaml

from infra.check.report import Finding, Outcome

INFRA: Final = Path(__file__).parents[1]
PROCESSES: Final = ("agent", "compactor")
SECRET: Final = re.compile(r"PASSWORD|SECRET", re.IGNORECASE)
REQUIRED: Final = re.compile(r"^\$\{\w+:\?[^}]+\}$")

Said = tuple[str, str, str]
"""File, message, remedy."""


def outcomes(infra: Path = INFRA) -> Iterator[Outcome]:
    checks: dict[str, Callable[[Path], Iterator[Said]]] = {"chart": chart, "compose": compose, "image": image}
    for name, check in checks.items():
        yield Outcome(name, ".", tuple(Finding(name, *said) for said in check(infra)))


def chart(infra: Path) -> Iterator[Said]:
    folder = infra / "helm" / "siltstone" / "templates"
    texts = {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.iterdir())}
    everything = "\n".join(texts.values())
    accounts = {each: re.findall(r"serviceAccountName: (.*)", texts[f"{each}s.yaml"]) for each in PROCESSES}
    if not all(accounts.values()) or accounts["agent"] == accounts["compactor"]:
        remedy = "give each a service account: the role of the compactors may delete"
        yield "agents.yaml", "agents and compactors share a service account", remedy
    yield from _network_policies(everything)
    for name, text in texts.items():
        if re.search(r"SILTSTONE_INSECURE\b", text):
            yield name, "insecure is set: anybody may connect", "leave SILTSTONE_INSECURE out"
        for found in re.findall(r"sslmode=([\w-]+)", text):
            if found != "verify-full":
                yield name, f"Postgres is not verified: sslmode={found}", "write sslmode=verify-full and sslrootcert"
    if "sslmode=verify-full&sslrootcert=" not in everything:
        yield "_common.tpl", "Postgres is not verified", "write sslmode=verify-full and sslrootcert"
    helper = texts["_common.tpl"]
    by_digest = r'regexMatch "\^sha256:\[0-9a-f\]\{64\}\$" \.Values\.image\.digest'
    if re.search(by_digest, helper) is None or ".Values.image.repository }}@{{ .Values.image.digest }}" not in helper:
        yield "_common.tpl", "the image is not named by its digest", "demand image.digest, and write REPOSITORY@DIGEST"
    yield from _listener(texts["_listeners.tpl"], texts["agents.yaml"])


def _network_policies(text: str) -> Iterator[Said]:
    documents = [each for each in re.split(r"^---$", text, flags=re.MULTILINE) if "kind: NetworkPolicy" in each]
    for process in PROCESSES:
        of_it = [
            each
            for each in documents
            if re.search(
                rf"podSelector:\n    matchLabels: .*\n      app.kubernetes.io/component: {process}\n"
                r"  policyTypes: \[Ingress, Egress\]",
                each,
            )
        ]
        if not of_it:
            message = f"no NetworkPolicy says who may connect to {process}s, and to whom they may"
            yield "networkpolicies.yaml", message, "give them a NetworkPolicy with policyTypes: [Ingress, Egress]"
        if process == "compactor" and any("9092" in each for each in of_it):
            yield "networkpolicies.yaml", "compactors take connections of clients", "let in port 9644 alone"


def _listener(listeners: str, text: str) -> Iterator[Said]:
    protocols = re.findall(r"_PROTOCOL, value: (\w+)", listeners + text)
    open_ones = [each for each in protocols if each not in ("SSL", "SASL_SSL")]
    if not protocols or open_ones or ("SSL" in protocols and "TLS_CLIENT_AUTH, value: required" not in listeners):
        remedy = "set the protocol to SASL_SSL, or to SSL with tls.client.auth=required"
        yield "_listeners.tpl", "clients of agents are not authenticated by TLS", remedy
    if '{name: SILTSTONE_ACL_MODE, value: "on"}' not in text:
        yield "agents.yaml", "agents do not enforce ACLs", 'set SILTSTONE_ACL_MODE to "on"'
    if "secret: {secretName: {{ required" not in text or "mountPath: /etc/siltstone/tls, readOnly: true" not in text:
        yield "agents.yaml", "certificate and key of the listener are not mounted", "mount listener.tlsSecret"


def compose(infra: Path) -> Iterator[Said]:
    place = "compose/compose.yaml"
    services: dict[str, Any] = yaml.safe_load((infra / place).read_text(encoding="utf-8"))["services"]
    users: dict[str, set[str]] = {}
    for name, service in services.items():
        environment = cast("dict[str, str]", service.get("environment") or {})
        for variable, value in environment.items():
            if SECRET.search(variable) and REQUIRED.match(value) is None:
                message = f"service {name} has a password that everybody knows: {variable}"
                yield place, message, "write ${NAME:?...}, and let make_passwords.py make it"
        for port in service.get("ports", []):
            if not str(port).startswith("127.0.0.1:"):
                yield place, f"service {name} can be reached from other machines: {port}", "publish on 127.0.0.1 alone"
        command = (service.get("command") or [""])[0]
        user = re.match(r"postgresql://(\w+)@", environment.get("SILTSTONE_METADATA_URL", ""))
        if user is not None:
            users.setdefault(command, set()).add(user[1])
    for process in PROCESSES:
        if any(users.get(process, set()) & users[other] for other in users if other != process):
            yield place, f"{process}s use the role of another process in Postgres", "give them a role of their own"


def image(infra: Path) -> Iterator[Said]:
    place = "image/Dockerfile"
    text = re.sub(r"^\s*#.*\n", "", (infra / place).read_text(encoding="utf-8"), flags=re.MULTILINE)
    text = text.replace("\\\n", " ")
    default = re.search(r"^ARG PYTHON_IMAGE=(\S+)", text, re.MULTILINE)
    bases = set(re.findall(r"^FROM (\S+)", text, re.MULTILINE))
    pinned = bases == {"${PYTHON_IMAGE}"} and re.search(r'case "\$\{PYTHON_IMAGE\}" in\s+\*@sha256:\*\)', text)
    if not pinned or (default is not None and "@sha256:" not in default[1]):
        yield place, "the base is not named by its digest", "demand PYTHON_IMAGE with @sha256:, and check it"
    for command in re.findall(r"pip [^&\n]*\binstall [^&\n]*", text):
        if "--require-hashes" not in command and "/wheel/" not in command:
            yield place, f"packages are installed without hashes: {command.strip()}", "install with --require-hashes"
    last = text.rpartition("\nFROM ")[2]
    if not re.search(r"pip uninstall [^&\n]*\bsetuptools\b[^&\n]*\bpip\b", last) or "ensurepip" not in last:
        yield place, "pip is left in the image", "uninstall pip and setuptools in the last stage, remove ensurepip"
