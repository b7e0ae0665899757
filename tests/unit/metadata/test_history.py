"""When the janitor must not delete: on any other server and on any other timeline, older or newer."""

from __future__ import annotations

import pytest

from metadata.contract.errors import MetadataUnavailableError
from metadata.postgres.history import server_history
from metadata.rules.history import History, ServerHistory
from siltstone.ops.adoption import adopted_changes

OLD = ServerHistory(system_identifier=7, timeline=3, database_oid=5)


def test_under_the_adopted_history_the_janitor_may_delete() -> None:
    assert History(adopted=OLD, present=OLD).halts == ""


@pytest.mark.parametrize(
    ("present", "why", "changes"),
    [
        (
            ServerHistory(7, 4, 5),
            "the metadata Postgres failed over or was restored: timeline 3 became 4",
            "system identifier 7 as before, timeline 3 became 4, database oid 5 as before",
        ),
        (
            ServerHistory(7, 2, 5),
            "timeline 3 became 2",
            "system identifier 7 as before, timeline 3 became 2, database oid 5 as before",
        ),
        (
            ServerHistory(8, 3, 5),
            "system identifier 7 became 8",
            "system identifier 7 became 8, timeline 3 as before, database oid 5 as before",
        ),
        (
            ServerHistory(8, 1, 9),
            "system identifier 7 became 8",
            "system identifier 7 became 8, timeline 3 became 1, database oid 5 became 9",
        ),
        (
            ServerHistory(7, 3, 9),
            "the metadata are in a different database of the same Postgres server than before: oid 5 became 9",
            "system identifier 7 as before, timeline 3 as before, database oid 5 became 9",
        ),
    ],
)
def test_under_any_other_it_may_not(present: ServerHistory, why: str, changes: str) -> None:
    history = History(adopted=OLD, present=present)
    assert why in history.halts
    assert adopted_changes(history) == changes


def test_a_timeline_is_read_as_postgres_names_its_files_and_a_standby_has_none() -> None:
    assert server_history(7, "0000001F", 5) == (7, 31, 5)
    with pytest.raises(MetadataUnavailableError, match="standby"):
        server_history(7, "00000000", 5)
