"""Which programs may work with which schema, and the limits on a migration."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from types import ModuleType

import pytest
from alembic.script import ScriptDirectory

from metadata.contract.errors import SchemaMismatchError
from metadata.migrations.migrate import MigrationPlan, Step, alembic_config
from metadata.migrations.schema_versions import Running, SchemaState, check_takes, revision_of, version_of
from metadata.postgres.tables import SCHEMA_REVISION

VERSIONS = Path(alembic_config().get_main_option("script_location") or "") / "versions"

RELEASED = {
    "0001_first.py": "13b749e6fdd59a4ac25bc3bd63713a9a6732dfef6db7b07ce723e263379b7f2b",
    "0001_tables.sql": "1aea434398dab2153245933e505275dc1aaf65fd1984c8c461e91995e31a0d14",
    "commit_l0_v1.sql": "c8a8e304953d40a9b44a01476e5623607603b819c599f0f445a356ee279cfbde",
    "commit_offsets_v1.sql": "2ce25882296f568991f150d1c7b1da117bea63b049905ce0e918743ce6f54916",
    "pins_v1.sql": "4cc8787cc9b6a41eca846f0755af9eb19d34fd27731bdeb519f3650eb585d3cb",
}
"""SHA-256 of every file of a released migration. Databases have run them, so they never change."""

TAKES_AWAY = re.compile(
    r"\b(drop|rename|truncate|delete\s+from|alter\s+column\s+\w+\s+(set\s+data\s+)?type|set\s+not\s+null|"
    r"create\s+or\s+replace|create\s+unique\s+index|validate\s+constraint|add\s+constraint|"
    r"add\s+column\s+(?![^,;]*\bdefault\b)[^,;]*not\s+null)\b",
    re.IGNORECASE,
)
"""Statements that may break a program made before them."""


PROVED = {
    "0006": "tests/integration/metadata/test_packed_producers.py",
    "0007": "tests/integration/metadata/test_first_use_of_security.py",
    "0009": "tests/integration/metadata/test_first_use_of_transactions.py",
}
"""Migrations that put something else in the place of what they take away, or define a function that takes something
away later; and the test by which programs made before them go on."""


def said(state: SchemaState, program: str) -> str:
    with pytest.raises(SchemaMismatchError) as refused:
        check_takes(state, program)
    return str(refused.value)


def test_a_program_works_with_its_own_schema_and_with_newer_ones_that_take_it() -> None:
    check_takes(SchemaState("0002", 1), "0002")
    check_takes(SchemaState("0005", 3), "0003")
    check_takes(SchemaState("0005", 3), "0004")
    check_takes(SchemaState("0001", None), "0001")


def test_a_program_that_is_too_old_is_told_so_and_what_to_start() -> None:
    text = said(SchemaState("0005", 3), "0002")
    assert "this program is too old" in text and "takes programs of schema 0003 and newer" in text
    assert "start the release that migrated the database, or a newer one" in text
    # a database that names no oldest program accepts only its own programs
    assert "this program is too old" in said(SchemaState("0005", None), "0004")


def test_a_program_that_is_ahead_of_its_database_is_told_to_migrate_first() -> None:
    for state in (SchemaState("0001", None), SchemaState("0004", 1), SchemaState(None, None)):
        text = said(state, "0005")
        assert "this release needs 0005" in text and "run `siltstone migrate` of this release first" in text


@pytest.mark.parametrize("revision", ["", "2", "00002", "a1b2c3d4e5f6", "-001"])
def test_a_revision_that_is_not_ours_takes_nobody(revision: str) -> None:
    assert version_of(revision) is None
    assert "too old" in said(SchemaState(revision, 1), "0002")


def test_a_plan_names_those_who_must_stop() -> None:
    agent, compactor = Running("agent", "10.0.0.1:9092", 1), Running("compactor", "node 3 on b", 2)
    step = Step("0003", 2, "")
    plan = MigrationPlan(SchemaState("0002", 1), "0003", [step], [compactor, agent])
    assert plan.oldest_program == 2
    assert plan.must_stop == [agent]
    # the demand of an earlier migration still holds
    assert MigrationPlan(SchemaState("0003", 3), "0004", [Step("0004", 2, "")], [compactor]).must_stop == [compactor]
    assert MigrationPlan(SchemaState("0002", 1), "0002", [], [agent]).must_stop == []


# ---- the limits on a migration -----------------------------------------------------------------------------------


def scripts() -> list[ModuleType]:
    found = ScriptDirectory.from_config(alembic_config()).walk_revisions()
    return sorted((script.module for script in found), key=lambda module: module.revision)


def test_released_migrations_are_as_they_were_released() -> None:
    found = {name: hashlib.sha256((VERSIONS / name).read_bytes()).hexdigest() for name in RELEASED}
    assert found == RELEASED, "a released migration never changes: write the next one"


def test_every_file_of_the_first_migration_is_held() -> None:
    text = (VERSIONS / "0001_first.py").read_text()
    assert {"0001_first.py", *re.findall(r'run_script\("([^"]+)"\)', text)} <= RELEASED.keys()


def test_revisions_count_up_one_by_one_to_the_one_that_this_release_is_for() -> None:
    revisions = [script.revision for script in scripts()]
    assert revisions == [revision_of(number) for number in range(1, len(revisions) + 1)]
    assert revisions[-1] == SCHEMA_REVISION


def test_every_migration_but_the_first_says_whom_it_takes_and_never_takes_back() -> None:
    stated = [getattr(script, "oldest_program", "0001") for script in scripts()]
    assert stated == sorted(stated)
    assert not hasattr(scripts()[0], "oldest_program")
    assert all(hasattr(script, "oldest_program") for script in scripts()[1:])


def what_it_runs(script: ModuleType) -> str:
    """The migration's Python and SQL, without comments."""
    source = Path(script.__file__ or "").read_text()
    files = re.findall(r'run_script\("([^"]+)"\)', source)
    sql = "\n".join((VERSIONS / name).read_text() for name in files)
    return re.sub(r"(--|#)[^\n]*", "", source.partition("def downgrade")[0] + sql)


def test_a_migration_that_takes_something_away_takes_no_program_that_used_it() -> None:
    """A heuristic over the text: a migration that removes something, or puts it under a new rule, must demand programs
    that know it."""
    before = "0001"
    for script in scripts()[1:]:
        if script.revision in PROVED:
            assert Path(PROVED[script.revision]).exists()
        elif TAKES_AWAY.search(what_it_runs(script)):
            assert script.oldest_program > before, f"{script.revision} does not only add: {before} may not go on"
        before = max(before, script.oldest_program)


@pytest.mark.parametrize(
    "sql",
    [
        "ALTER TABLE files DROP COLUMN seq",
        "ALTER TABLE files RENAME seq TO number",
        "ALTER TABLE files ALTER COLUMN seq TYPE integer",
        "ALTER TABLE files ALTER COLUMN seq SET NOT NULL",
        "CREATE OR REPLACE FUNCTION commit_l0_v1() RETURNS void",
        "ALTER TABLE files ADD CONSTRAINT positive CHECK (seq > 0)",
        "ALTER TABLE files ADD COLUMN a int DEFAULT 0, ADD COLUMN zone text NOT NULL;",
    ],
)
def test_what_takes_away_is_noticed(sql: str) -> None:
    assert TAKES_AWAY.search(sql)


def test_what_only_adds_is_not() -> None:
    added = "CREATE TABLE t (x int NOT NULL); ALTER TABLE files ADD COLUMN a int NOT NULL DEFAULT 0, ADD COLUMN b int;"
    assert not TAKES_AWAY.search(added)
