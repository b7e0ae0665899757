"""An upgrade in one step under load: the new programs are started first and wait, then the schema is migrated, then the
older programs stop. After that one release back, and forward again.

As on ECS, the new programs run beside the older ones, at addresses of their own. Both releases are this one under two
numbers, because from the last release of the history to this one there is no way back once its transactions may be
used; that upgrade, with programs that are older indeed, is made in one step too.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from metadata.migrations.migrate import migrate_async, schema_state
from metadata.migrations.schema_versions import SchemaState, revision_of
from metadata.migrations.upgrade_status import UpgradeStatus, upgrade_status
from metadata.postgres.tables import SCHEMA_REVISION
from metadata.postgres.transactions.using import OLDEST_PROGRAM
from tests.fixtures.compactors import CompactorProcess
from tests.fixtures.faults import AgentProcess, Processes, in_thread
from tests.fixtures.older_program import PRESENT, migrate_by, program_before
from tests.fixtures.postgres import COMPACTOR_ROLE, as_role
from tests.fixtures.releases import next_release, ours, program_of
from tests.fixtures.waiting import wait_until
from tests.integration.faults.test_rolling_upgrade import three_agents
from tests.integration.faults.test_upgrade_to_transactions import (
    MIGRATION,
    OLDER,
    clients,
    finish,
    older_agents,
    older_is_refused,
    programs_at_work,
)

NEXT = ours() + 1
WAITS = "waiting for the schema"


class Fleet:
    """The agents of one release beside those of another, and one compactor."""

    def __init__(self, processes: Processes, url: str, folder: Path) -> None:
        self._processes, self._url, self._folder = processes, url, folder
        self.compactors: list[CompactorProcess] = []

    def begin(self, program: Sequence[str], count: int) -> Sequence[AgentProcess]:
        """Agents and a compactor of the release; they have begun to start."""
        agents = [self._processes.add() for _ in range(count)]
        compactor = CompactorProcess(
            metadata_url=self._url,
            store_url=self._processes.store_url,
            log=self._folder / f"compactor-{len(self.compactors)}.log",
        )
        self.compactors.append(compactor)
        for each in (*agents, compactor):
            each.become(*program)
            each.begin_start()
        return [*agents, compactor]

    def until_ready(self, programs: Sequence[AgentProcess]) -> None:
        for each in programs:
            each.await_ready()
        self._processes.until_all_know_all()

    def stop_all_but(self, programs: Sequence[AgentProcess]) -> None:
        """Stop the others one by one, and leave them out from now on."""
        for each in (*self._processes.agents, *self.compactors):
            if each not in programs and each.is_running:
                assert each.stop() == 0, each.log
        self._processes.until_all_know_all()


@contextmanager
def fleet_of(processes: Processes, url: str, folder: Path) -> Generator[Fleet]:
    fleet = Fleet(processes, url, folder)
    try:
        yield fleet
    finally:
        for each in fleet.compactors:
            each.stop()


def timed(work: Any, *arguments: object) -> float:
    began = time.monotonic()
    work(*arguments)
    return time.monotonic() - began


def tell(records: int, seconds: Mapping[str, float]) -> None:
    print(f"{records} records;", "; ".join(f"{name} {each:.1f} s" for name, each in seconds.items()))


def finish_on(processes: Processes, agents: Sequence[AgentProcess], load: Any, readers: Sequence[Any], url: str) -> int:
    """Ask one of these: the first ones have ended."""
    processes.agents.sort(key=lambda each: each not in agents)
    return finish(processes, load, readers, url)


def told(url: str, versions: Path) -> UpgradeStatus:
    return in_thread(upgrade_status(url, versions=versions))


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_new_programs_wait_for_the_migration_and_one_release_goes_back_and_forward_under_load(
    postgres_url: str, tmp_path: Path
) -> None:
    url, count = postgres_url, 3
    seconds: dict[str, float] = {}
    versions = next_release(tmp_path / "next")
    with (
        three_agents(url, tmp_path) as processes,
        fleet_of(processes, url, tmp_path) as fleet,
        clients(processes) as (load, readers),
    ):
        # when all programs of the next release are started first
        new = fleet.begin(program_of(NEXT), count)
        wait_until(lambda: all(WAITS in each.log for each in new))
        # then they wait, and the older ones serve
        load.until_more(50)
        assert programs_at_work(url) == [ours()] * count
        assert told(url, versions).left()[0].startswith("run `siltstone migrate")
        # and they go on by themselves after the migration
        seconds["migration"] = timed(in_thread, migrate_async(url, versions=versions))
        seconds["new programs ready"] = timed(fleet.until_ready, new)
        load.until_more(50)
        assert "replace" in " ".join(told(url, versions).left())
        seconds["older agents stopped"] = timed(fleet.stop_all_but, new)
        load.until_more(50)
        assert (programs_at_work(url), told(url, versions).left()) == ([NEXT] * (count + 1), [])
        # one release back: the schema stays
        seconds["back: older programs ready"] = timed(fleet.until_ready, old := fleet.begin(program_of(ours()), count))
        seconds["back: newer ones stopped"] = timed(fleet.stop_all_but, old)
        load.until_more(50)
        assert programs_at_work(url) == [ours()] * (count + 1)
        assert in_thread(schema_state(url)) == SchemaState(revision_of(NEXT), ours())
        assert in_thread(upgrade_status(url)).left() == [], "as the older release sees it"
        # and forward again, without a migration
        seconds["forward: new programs ready"] = timed(fleet.until_ready, new := fleet.begin(program_of(NEXT), count))
        seconds["forward: older ones stopped"] = timed(fleet.stop_all_but, new)
        load.until_more(50)
        records = finish_on(processes, new, load, readers, url)
        tell(records, seconds)
        for each in fleet.compactors:
            assert "Traceback" not in each.log, each.log


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_programs_out_of_the_history_are_replaced_in_one_step_under_load(
    bare_postgres_url: str, tmp_path: Path
) -> None:
    url, count = bare_postgres_url, 2
    seconds: dict[str, float] = {}
    older = program_before(MIGRATION, tmp_path / "older")
    migrate_by(older.arguments(), url)
    with (
        older_agents(count, url, tmp_path, older) as processes,
        fleet_of(processes, as_role(url, COMPACTOR_ROLE), tmp_path) as fleet,
        clients(processes) as (load, readers),
    ):
        new = fleet.begin(PRESENT, count)
        wait_until(lambda: all(WAITS in each.log for each in new))
        load.until_more(50)
        assert programs_at_work(url) == [OLDER] * count
        # the schema, and then the rights of the roles
        seconds["migration"] = timed(migrate_by, PRESENT, url)
        seconds["new programs ready"] = timed(fleet.until_ready, new)
        load.until_more(50)
        seconds["older agents stopped"] = timed(fleet.stop_all_but, new)
        load.until_more(50)
        assert in_thread(upgrade_status(url)).left() == []
        records = finish_on(processes, new, load, readers, url)
        tell(records, seconds)
        wait_until(lambda: in_thread(schema_state(url)) == SchemaState(SCHEMA_REVISION, OLDEST_PROGRAM))
        older_is_refused(older, url, processes.store_url)
