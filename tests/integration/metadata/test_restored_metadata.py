"""A real Postgres is put back to an earlier state, while the object store still holds the files committed since.

Those files look like orphans. So a compactor that starts on this Postgres must delete nothing until an operator has run
`siltstone fsck --adopt`.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from runtime.clock import SystemClock
from siltstone.cli import main
from siltstone.kafka.client import connected
from tests.fixtures.compactors import CompactorProcess, CompactorProcesses
from tests.fixtures.faults import Processes, create_topic
from tests.fixtures.waiting import wait_until
from wire.records import NewRecord, build_batch

BEFORE, SINCE = 6, 5
GRACE_MS = 1_000
COMPACTOR = {"gc_grace_ms": GRACE_MS, "orphan_age_ms": 1_000, "orphan_check_interval_ms": 200}


class Restored:
    """A cluster whose Postgres is put back to its state before the last files."""

    def __init__(self, processes: Processes, folder: Path) -> None:
        self.processes = processes
        self._folder = folder
        self._data = folder / "postgres" / "data"
        self.since: set[str] = set()
        """Keys that were committed after the restored state."""

    def write_and_go_back(self) -> None:
        processes, backup = self.processes, self._folder / "backup"
        [agent] = processes.start(1, gc_grace_ms=GRACE_MS, tail_poll_ms=20)
        create_topic(processes.bootstrap, "t", partitions=1)
        self._write(BEFORE)
        assert agent.stop() == 0
        processes.postgres.stop()
        owner = self._data.stat()
        shutil.copytree(self._data, backup)
        processes.postgres.start()
        agent.start()
        known = self.objects()
        self._write(SINCE)
        self.since = self.objects() - known
        assert agent.stop() == 0
        processes.postgres.stop()
        shutil.rmtree(self._data)
        shutil.copytree(backup, self._data)
        (self._data / "recovery.signal.not-yet").touch()
        for path in (self._data, *self._data.rglob("*")):
            os.chown(path, owner.st_uid, owner.st_gid)

    def recover(self) -> None:
        """Start Postgres on a new timeline, like a recovery to a point in time."""
        with (self._data / "postgresql.auto.conf").open("a") as conf:
            conf.write("restore_command = 'false'\n")
        (self._data / "recovery.signal.not-yet").rename(self._data / "recovery.signal")
        self.processes.postgres.start()

    def _write(self, files: int) -> None:
        now_ms = SystemClock().wall_ms()  # younger than any retention

        async def write() -> None:
            async with connected(self.processes.bootstrap) as client:
                for number in range(files):
                    await client.produce("t", 0, build_batch([NewRecord(now_ms, b"k", b"%d" % number)]))

        asyncio.run(write())

    def objects(self) -> set[str]:
        store = self.processes.store_folder  # os.walk copes with directories that vanish meanwhile
        paths = (Path(place, name) for place, _, names in os.walk(store) for name in names)
        return {str(path.relative_to(store)) for path in paths if path.suffix == ".silt"}

    def fsck(self, *words: str) -> Result:
        places = ["--metadata", self.processes.postgres.url, "--object-store", self.processes.store_url]
        return CliRunner().invoke(main, ["fsck", *places, *words])

    def janitor(self) -> dict[str, Any]:
        return json.loads(self.fsck("--quick", "--json").stdout)["janitor"]

    def until_merged_and_past_grace(self, *, sweeps_ms: int = 1_000) -> None:
        """Wait until all known L0 files died so long ago that the janitor has run several times since."""
        wait_until(
            lambda: self.processes.postgres.value(
                f"""SELECT count(*) = {BEFORE} FROM files
                WHERE level = 0 AND state = 'dead' AND dead_ms < clock_ms() - {GRACE_MS + sweeps_ms}"""
            ),
            60,
        )

    def until_gone(self, keys: set[str]) -> None:
        wait_until(lambda: not keys & self.objects(), 30, lambda: f"still there: {sorted(keys & self.objects())}")


@pytest.fixture
def restored(processes: Processes, tmp_path: Path) -> Restored:
    made = Restored(processes, tmp_path)
    made.write_and_go_back()
    assert len(made.since) == SINCE
    return made


def test_after_a_recovery_to_a_point_in_time_all_goes_on_but_deletion_until_it_is_adopted(
    restored: Restored, compactors: CompactorProcesses
) -> None:
    # given a Postgres that was recovered to before the last files
    before = restored.objects()
    restored.recover()
    [compactor] = compactors.start(1, **COMPACTOR)
    # when the compactor has merged the files that it knows, and the grace period and the age of orphans are over
    restored.until_merged_and_past_grace()
    # then nothing is deleted, neither known dead files nor unknown objects
    assert compactor.metric("janitor_halted") == 1
    assert compactor.metric("deleted_files_total") == compactor.metric("orphans_deleted_total") == 0
    assert before <= restored.objects()
    assert compactor.metric("compactor_errors_total") == 0
    assert compactor.log.count("janitor halted") == 1 and "siltstone fsck --adopt" in compactor.log
    # and fsck reports this, and counts the unknown objects
    shown = restored.fsck()
    assert shown.exit_code == 0, shown.output
    assert "the janitor is halted" in shown.stdout and "timeline 1 became 2" in shown.stdout
    assert f"{SINCE} objects" in shown.stdout
    assert set(restored.janitor()["unknown_objects"]) == restored.since
    refuse_while_an_object_is_missing(restored, compactor)
    name_what_should_be_gone_by_the_settings(restored)
    # when the server is adopted
    adopted = restored.fsck("--adopt")
    assert adopted.exit_code == 0, adopted.output
    identifier = restored.processes.postgres.value("SELECT system_identifier FROM pg_control_system()")
    assert f"adopted: system identifier {identifier} as before, timeline 1 became 2" in adopted.stdout
    assert f"{SINCE} objects" in adopted.stdout and "orphan.age.ms" in adopted.stdout
    # then the same compactor deletes the dead files and the unknown objects
    restored.until_gone(before)
    wait_until(lambda: compactor.metric("janitor_halted") == 0)
    again = restored.fsck("--adopt")
    assert again.exit_code == 0 and "nothing to adopt" in again.stdout and again.stdout.endswith("clean\n")


def refuse_while_an_object_is_missing(restored: Restored, compactor: CompactorProcess) -> None:
    store = restored.processes.store_folder
    [live] = [row["key"] for row in restored.processes.postgres.query("SELECT key FROM files WHERE state = 'live'")]
    aside = store.parent / "aside.silt"
    (store / live).rename(aside)
    refused = restored.fsck("--adopt")
    assert refused.exit_code == 1
    assert "not adopted: FILE-1 must hold first" in refused.stdout and live in refused.stdout
    assert restored.janitor()["halted"] and compactor.metric("janitor_halted") == 1
    aside.rename(store / live)


def name_what_should_be_gone_by_the_settings(restored: Restored) -> None:
    """A halted janitor leaves overdue files behind. That must not prevent the adoption that lets it go on."""
    restored.processes.postgres.query("UPDATE files SET dead_ms = dead_ms - 7200000 WHERE state = 'dead'")
    late = restored.fsck("--quick")
    assert late.exit_code == 1 and late.stdout.count("FILE-2: object") == BEFORE
    assert late.stdout.endswith(f"{BEFORE} violations\n")
    patient = restored.fsck("--quick", "--set", "gc.grace.ms=7200000", "--set", "orphan.age.ms=7200000")
    assert patient.exit_code == 0, patient.output


@pytest.mark.soak
def test_a_copy_of_the_volume_put_back_is_noticed_only_when_somebody_says_so(
    restored: Restored, compactors: CompactorProcesses
) -> None:
    """The limit of the check: server and timeline are the same as before, and Postgres's own memory went back too."""
    restored.processes.postgres.start()
    assert restored.janitor()["halted"] == ""
    # given the statement that docs/operations/backup.md tells the operator to run before a compactor starts
    restored.processes.postgres.query("UPDATE cluster SET adopted_timeline = 0")
    [compactor] = compactors.start(1, **COMPACTOR)
    restored.until_merged_and_past_grace()
    assert compactor.metric("janitor_halted") == 1 and restored.since <= restored.objects()
    # without that statement, these few objects are deleted like any orphans
    assert restored.fsck("--quick", "--adopt").exit_code == 0
    restored.until_gone(restored.since)
