"""Writes `docs/kafka-coverage.md`: the APIs, from the agents' own table, and the clients with the tests that each
passes, from the table of those tests. `python -m tests.conformance.coverage` runs it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from tests.conformance.clients import CLIENTS
from tests.conformance.contract import Client
from tests.conformance.scenarios import SCENARIOS
from tests.conformance.tool_rows import TOOL_ROWS, last_seen
from wire.api import APIS

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "kafka-coverage.md"

ABSENT = (
    ("offsets in transactions", "TxnOffsetCommit", "`sendOffsetsToTransaction` fails"),
    (
        "the consumer group protocol of KIP-848",
        "ConsumerGroupHeartbeat, ConsumerGroupDescribe",
        "clients that may choose use the classic protocol; `group.protocol=consumer` fails",
    ),
    ("share groups and streams groups", "ShareFetch, StreamsGroupHeartbeat and the like", "use consumer groups"),
    ("a KRaft quorum", "DescribeQuorum", "not listed: Postgres holds the metadata (`siltstone doctor`)"),
    (
        "internal topics",
        "`__consumer_offsets`, `__transaction_state`",
        "there are none, and none may be created ([decision 0030](decisions/0030-apis-with-nothing-to-do.md))",
    ),
    ("message formats before v2", "Produce 0-2, Fetch 0-3", "clients older than Kafka 0.11 do not work"),
)

ANSWERED = (
    (
        "ACLs",
        "CreateAcls, DescribeAcls, DeleteAcls",
        "with `acl.mode=off` answered SECURITY_DISABLED, as by Kafka without an authorizer: everybody who can connect"
        " may do everything",
    ),
    (
        "SASL at a listener without it, delegation tokens",
        "SaslHandshake, SaslAuthenticate, CreateDelegationToken",
        "answered as by Kafka's PLAINTEXT listener: ILLEGAL_SASL_STATE, DELEGATION_TOKEN_REQUEST_NOT_ALLOWED",
    ),
    (
        "quotas",
        "AlterClientQuotas",
        "as in Kafka, and the agents share them; `producer_id_rate` is ours, quotas of replication do not exist",
    ),
    (
        "replicas to move",
        "AlterPartitionReassignments, AlterReplicaLogDirs, ElectLeaders",
        "what changes nothing is accepted, the rest is refused in words",
    ),
    ("features with levels", "UpdateFeatures", "none are listed; a change is refused in words"),
)


def render_coverage_markdown() -> str:
    return "\n".join(
        [
            "# Kafka coverage",
            "",
            "<!-- Written by `python -m tests.conformance.coverage`. Do not edit: a test compares. -->",
            "",
            "The part of Kafka's protocol that agents serve, and the clients that were tested. Both tables come from",
            "the code: the first from the table that agents answer by, the second from `tests/conformance`. Settings",
            "for clients: [kafka-clients.md](kafka-clients.md). Everything missing: [limits.md](limits.md).",
            "",
            "## APIs",
            "",
            "The versions are those in the ApiVersions answer, both ends included.",
            "",
            *_apis(),
            "",
            "## What is not there",
            "",
            *_table(("missing", "Kafka's APIs", "effect"), [list(row) for row in ABSENT]),
            "",
            "Some APIs are answered without the thing that they are about:",
            "",
            *_table(("missing", "Kafka's APIs", "answer"), [list(row) for row in ANSWERED]),
            "",
            "## Kafka's tools",
            "",
            f"Exit codes that the tools of Kafka {last_seen().kafka} had when a test ran them beside two agents, which",
            "enforced no ACLs, and words of their output. The test runs them again where the jars are at hand.",
            "TOPIC is an empty topic of 2",
            "replicas; SAME and OTHER are files with its present replicas and with others, START has its log start.",
            "",
            *_table(("tool", "command", "exit code", "says"), _tools()),
            "",
            "## Clients",
            "",
            "Each ✓ is a test against two agents in two zones, as processes on a real Postgres. A number is a note:",
            "the client has no means for this, or follows a rule of its own, with Kafka too.",
            "",
            *_clients(),
            "",
        ]
    )


def _tools() -> list[list[str]]:
    codes = last_seen().codes
    return [
        [row.tool, f"`{row.words}`" if row.words else "", str(codes[row.command]), row.says.strip()]
        for row in TOOL_ROWS
    ]


def _apis() -> list[str]:
    rows = [
        [str(api.key), api.name, _versions(*api.advertised), _note(api.advertised, api.accepted)]
        for api in sorted(APIS.values(), key=lambda api: api.key)
    ]
    return _table(("key", "API", "versions", ""), rows)


def _versions(low: int, high: int) -> str:
    return str(low) if low == high else f"{low}-{high}"


def _note(advertised: tuple[int, int], accepted: tuple[int, int]) -> str:
    if advertised == accepted:
        return ""
    return f"served from {accepted[0]} on; older ones are listed for clients that look for them, then refused"


def _clients() -> list[str]:
    notes: list[str] = []
    rows: list[list[str]] = []
    for scenario in SCENARIOS:
        cells = [scenario.name]
        for client in CLIENTS:
            lack = client.lacks.get(scenario.name)
            if lack is None:
                cells.append("✓")
                continue
            note = f"{client.name}: {lack}"
            if note not in notes:
                notes.append(note)
            cells.append(f"({notes.index(note) + 1})")
        rows.append(cells)
    rows.append(["tested", *(_when(client) for client in CLIENTS)])
    heads = [" ".join((client.name, _version(client))).strip() for client in CLIENTS]
    return [*_table(["", *heads], rows), "", *(f"{number}. {note}." for number, note in enumerate(notes, 1))]


def _when(client: Client) -> str:
    if client.always_there:
        return "`make test`"
    return f"`make {'soak' if client.is_heavy else 'test'}`, where it is at hand"


def _version(client: Client) -> str:
    """The version that is pinned here; "" if the machine's own version is used."""
    pins = (ROOT / "constraints.txt").read_text() + (ROOT / "tests/conformance/programs/go/go.mod").read_text()
    found = re.search(rf"{re.escape(client.name)}(?:==| v)(\d+\.\d+)", pins)
    return found[1] if found else ""


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(row) + " |" for row in (heads, ["---"] * len(heads), *rows)]


if __name__ == "__main__":
    DOCUMENT.write_text(render_coverage_markdown())
