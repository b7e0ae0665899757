"""`siltstone upgrade status` on a real Postgres, as the owner of the schema and as the roles of programs see it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from metadata.migrations.migrate import migrate_async
from metadata.migrations.schema_versions import revision_of
from metadata.postgres.tables import SCHEMA_REVISION
from siltstone.cli import main
from tests.fixtures.faults import in_thread
from tests.fixtures.postgres import AGENT_ROLE, COMPACTOR_ROLE, as_role, give_roles, run_sql
from tests.fixtures.releases import make_schema, next_release, ours

PREVIOUS = revision_of(ours() - 1)
UNSEEN = (
    "no program is seen: agents and compactors that wait, that end at their start, or that use another Postgres are"
    " not, so this does not show that all are of this release"
)
ROLES = f" --agent {AGENT_ROLE} --compactor {COMPACTOR_ROLE}"


def asked(url: str) -> tuple[int, list[str]]:
    """The exit code, and the lines without the blanks that align them."""
    done = CliRunner().invoke(main, ["upgrade", "status", "--metadata", url])
    return done.exit_code, [" ".join(line.split()) for line in done.output.splitlines() if line.strip("━─ ")]


def asked_json(url: str) -> dict[str, Any]:
    return json.loads(CliRunner().invoke(main, ["upgrade", "status", "--json", "--metadata", url]).stdout)


def register(url: str, port: int, program: int) -> None:
    """An agent of this schema, at work."""
    lease = "INSERT INTO agents (writer_id, epoch, lease_until_ms, program_schema) SELECT writer_id, 0,"
    in_thread(
        run_sql(
            url,
            f"INSERT INTO writers (host, port) VALUES ('a', {port})",
            f"{lease} clock_ms() + 600000, {program} FROM writers WHERE port = {port}",
        )
    )


@pytest.mark.usefixtures("postgres_template")
def test_an_upgrade_is_told_step_by_step(bare_postgres_url: str) -> None:
    url = bare_postgres_url
    # without a schema
    code, said = asked(url)
    assert code == 1
    assert said == [
        "schema in Postgres none",
        f"schema of this release {SCHEMA_REVISION}",
        "left to do 1. run `siltstone migrate`",
        UNSEEN,
    ]
    # with that of the release before, and one of its agents
    in_thread(make_schema(url, ours() - 1))
    register(url, 1, ours() - 1)
    code, said = asked(url)
    assert code == 1
    assert said[:6] == [
        f"schema in Postgres {PREVIOUS}",
        f"schema of this release {SCHEMA_REVISION}",
        "accepts programs of 0001 and newer; after the migration 0001 and newer",
        f"going back to the release of schema {revision_of(ours() - 2)}: yes",
        "left to do 1. run `siltstone migrate`",
        f"2. replace 1 older program by this release: agent a:1 (schema {PREVIOUS})",
    ]
    assert f"agent a:1 {PREVIOUS} older" in said
    # and after the migration
    in_thread(migrate_async(url))
    register(url, 2, ours())
    code, said = asked(url)
    assert code == 1
    assert f"left to do 1. replace 1 older program by this release: agent a:1 (schema {PREVIOUS})" in said
    assert f"going back to the release of schema {PREVIOUS}: yes" in said
    # releases of one schema cannot be told apart
    assert "kind place schema which is" in said
    assert said[-2:] == [f"agent a:1 {PREVIOUS} older", f"agent a:2 {SCHEMA_REVISION} that of this release"]
    assert [each["release"] for each in asked_json(url)["programs"]] == ["older", "this release"]
    in_thread(run_sql(url, "UPDATE agents SET lease_until_ms = 0 WHERE program_schema < " + str(ours())))
    code, said = asked(url)
    assert (code, said[4]) == (0, "left to do nothing")
    # and where no program runs at all, roles are missed, as in a rebuilt database
    in_thread(run_sql(url, "UPDATE agents SET lease_until_ms = 0"))
    code, said = asked(url)
    assert code == 1
    assert said[4].startswith("left to do 1. run `siltstone migrate --agent ROLE --compactor ROLE`: no role of agents")
    # with them, it says that it has seen no program
    in_thread(give_roles(url))
    code, said = asked(url)
    assert (code, said[4:]) == (0, ["left to do nothing that can be seen here", UNSEEN])
    assert asked_json(url)["programs"] == []


@pytest.mark.parametrize("role", ["", AGENT_ROLE, COMPACTOR_ROLE])
def test_roles_of_programs_may_ask_and_what_they_lack_is_told(postgres_url: str, role: str) -> None:
    url = as_role(postgres_url, role) if role else postgres_url
    assert asked_json(url)["left"] == []
    in_thread(
        run_sql(
            postgres_url,
            f"REVOKE UPDATE (state) ON files FROM {AGENT_ROLE}; REVOKE ALL ON SEQUENCE node_ids FROM {COMPACTOR_ROLE}",
            f"REVOKE ALL ON FUNCTION end_older_programs_v1() FROM {AGENT_ROLE}",
        )
    )
    code, _ = asked(url)
    found = asked_json(url)
    assert code == 1
    assert found["roles"] == [
        {"kind": "agent", "role": AGENT_ROLE, "lacks": ["end_older_programs_v1()", "files"]},
        {"kind": "compactor", "role": COMPACTOR_ROLE, "lacks": ["node_ids"]},
    ]
    assert found["left"] == [
        f"run `siltstone migrate{ROLES}`: {AGENT_ROLE} lacks rights on end_older_programs_v1(), files;"
        f" {COMPACTOR_ROLE} lacks rights on node_ids"
    ]
    in_thread(give_roles(postgres_url))
    assert asked(url)[0] == 0


def test_a_release_that_the_schema_does_not_accept_any_more_is_told_so(postgres_url: str, tmp_path: Path) -> None:
    in_thread(migrate_async(postgres_url, versions=next_release(tmp_path / "next", oldest_program=ours() + 1)))

    found = asked_json(postgres_url)

    assert (found["schema"], found["oldest_program"]) == (revision_of(ours() + 1), ours() + 1)
    assert found["going_back"] == {"schema": SCHEMA_REVISION, "accepted": False}
    assert found["left"] == [
        "start the release that migrated the database, or a newer one: the schema does not accept this one"
    ]


def test_without_a_postgres_it_is_told_how_to_name_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["upgrade", "status"], env={"SILTSTONE_METADATA_URL": ""})
    assert done.exit_code == 1
    assert done.stderr.startswith("error: ")
