"""The pages about sizing Postgres, Terraform and Compose say what the doctor's rules say."""

from __future__ import annotations

import re
from pathlib import Path

from siltstone.ops.capacity import figures, page
from siltstone.ops.capacity.judge import CHECKPOINT_S_MIN, FREEZE_MAX_AGE
from siltstone.ops.capacity.limits import connections_peak, rds_max_connections

ROOT = Path(__file__).resolve().parents[4]
SIZING = (ROOT / "docs/operations/sizing.md").read_text(encoding="utf-8")
POSTGRES = (ROOT / "docs/operations/postgres.md").read_text(encoding="utf-8")
RUNBOOK = (ROOT / "docs/operations/runbook.md").read_text(encoding="utf-8")
PARAMETERS = (ROOT / "infra/terraform/modules/metadata/parameters.tf").read_text(encoding="utf-8")
VARIABLES = (ROOT / "infra/terraform/variables.tf").read_text(encoding="utf-8")
COMPOSE = (ROOT / "infra/compose/compose.yaml").read_text(encoding="utf-8")


def test_the_tables_are_those_of_the_measured_figures() -> None:
    for text, made in (
        (SIZING, page.ceilings_table()),
        (SIZING, page.classes_table()),
        (POSTGRES, page.transaction_ids_table()),
    ):
        assert made in text, f"put this table into the page:\n{made}"


def test_the_text_beside_the_tables_has_the_same_figures() -> None:
    fixed, partition = figures.COMMIT_FIXED_MS, figures.COMMIT_PARTITION_MS
    assert f"({fixed} + {partition} x partitions) ms of server time a commit" in SIZING
    assert f"{figures.BUSY_SHARE:.0%} of its vCPUs are busy, by {fixed} ms a commit and {partition} ms" in SIZING
    assert f"two shared cores, a flush of {figures.BENCH_FLUSH_MS} ms" in SIZING
    assert f"{page.SHOWN_AGENTS} agents, idempotent producers, a flush of {figures.MULTI_AZ_FLUSH_MS:.0f} ms" in SIZING
    assert f"| agent | {figures.AGENT_IDLE} | {figures.AGENT_MAX} |" in POSTGRES
    assert f"| compactor | {figures.COMPACTOR_IDLE} | {figures.COMPACTOR_MAX} |" in POSTGRES
    most = f"{figures.AGENT_MAX} x agents + {figures.COMPACTOR_MAX} x compactors + {figures.COMMAND_MAX}"
    assert most in POSTGRES
    assert f"with 12 agents and a compactor, take {connections_peak(18, 1)} or more" in POSTGRES
    assert f"agents x {figures.AGENT_IDLE_XIDS_PER_S} + files a second" in POSTGRES
    assert f"up to {figures.AGENT_MAX} connections" in RUNBOOK


def test_terraform_makes_what_the_doctor_takes_and_its_default_class_fits_its_agents() -> None:
    given = dict(re.findall(r'^ +(\w+) += "?([\w.]+)"?$', PARAMETERS, re.MULTILINE))
    assert int(given["autovacuum_freeze_max_age"]) == FREEZE_MAX_AGE
    assert int(given["checkpoint_timeout"]) >= CHECKPOINT_S_MIN
    assert given["wal_compression"] == "lz4"
    assert re.search(r"^ +max_wal_size += tostring\(min\(8192, ", PARAMETERS, re.MULTILINE)
    # AWS refuses to set a static parameter at once
    assert 'at_restart = toset(["autovacuum_freeze_max_age"])' in PARAMETERS
    (default_class,) = re.findall(r'instance_class += optional\(string, "(.+?)"\)', VARIABLES)
    assert default_class == figures.DEFAULT_CLASS
    (agents_max,) = re.findall(r"count_max +=? ?optional\(number, (\d+)\)", VARIABLES)
    # half as many again during a replacement
    assert (
        connections_peak(int(agents_max) * 3 // 2, 1) < rds_max_connections(default_class) - page.RESERVED_CONNECTIONS
    )


def test_compose_sets_the_same_parameters() -> None:
    assert f"autovacuum_freeze_max_age={FREEZE_MAX_AGE}" in COMPOSE
    assert "checkpoint_timeout=15min" in COMPOSE and "wal_compression=" in COMPOSE
    (connections,) = re.findall(r"max_connections=(\d+)", COMPOSE)
    assert connections_peak(3, 1) < int(connections)
