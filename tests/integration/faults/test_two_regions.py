"""The loss of a region: a copy of the bucket and a standby of Postgres in another one take over.

docs/operations/two-regions.md has the steps, and figures of the soak.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.idempotent_load import LibrdkafkaWriter, Load, fresh_seed
from tests.fixtures.regions import (
    PARTITIONS,
    TOPIC,
    Died,
    Outcome,
    Regions,
    compared,
    first_answers,
    read_topic,
    two_regions,
)
from tests.fixtures.waiting import wait_until

CATALOG = {"catalog_interval_ms": 4_000, "catalog_increment_interval_ms": 500}
"""Three snapshots reach back further than the copy lags, as 15 minutes each do behind Replication Time Control."""

SLOW_S = 12
"""What a busy machine may add to a lag."""

pytestmark = pytest.mark.timeout(600)  # both regions are started, killed and started again


def goes_on(regions: Regions, url: str, died: Died, given_again: Mapping[int, int]) -> Outcome:
    """Start the second region on this Postgres; compare; write and merge there; adopt; and compare again."""
    agent = regions.step("agent started", lambda: regions.agent(url, regions.copy_url))
    regions.step("first record written and read", lambda: first_answers(agent.address))
    found = read_topic(agent.address)
    outcome = compared(died, found, given_again)
    regions.compactor(url, regions.copy_url, **CATALOG)
    load = Load(
        agent.address,
        topic=TOPIC,
        partitions=PARTITIONS,
        writers=[lambda name, **to: LibrdkafkaWriter(name.replace("w", "b"), **to)],
    )
    with load:
        load.until_more(200)
    acknowledged = load.finish()
    code, adopted = regions.command("fsck", url, "--adopt")
    assert code == 0 and adopted["janitor"]["adopted_now"], adopted
    later = read_topic(agent.address)
    assert later == found | acknowledged
    assert compared(died, later, given_again) == outcome
    for process in regions.processes[-2:]:
        process.stop()
    _, checked = regions.command("fsck", url)
    assert not broken(checked), checked
    return outcome


def broken(checked: Mapping[str, Any]) -> set[str]:
    return {each["id"] for each in checked["invariants"] if each["violations"]} - {"FILE-2"}


def from_the_bucket(regions: Regions, load_s: float) -> tuple[Died, Outcome]:
    """Postgres's standby has all, and the bucket lacks what was under way: the metadata are rebuilt from the bucket."""
    died = regions.live_and_die(lambda load: at_work(regions, load, load_s), **CATALOG)
    assert died.not_copied
    promoted = regions.step("standby promoted", regions.promote)
    # given a Postgres that is ahead of the bucket
    code, checked = regions.step("fsck of the standby", lambda: regions.command("fsck", promoted, "--quick", "--adopt"))
    assert code == 1 and broken(checked) == {"FILE-1"} and not checked["janitor"]["adopted_now"]
    # when
    url = regions.step("empty database", regions.empty_database)
    words = ("--force", "--append-newer-l0")
    code, rebuilt = regions.step("rebuild", lambda: regions.command("rebuild", url, *words))
    assert code in (0, 3), rebuilt
    _, checked = regions.step("fsck", lambda: regions.command("fsck", url, "--quick"))
    assert not broken(checked), checked
    print("passed over:", rebuilt["passed_over"])
    print("losses:", [(each["what"], each["partition"], each["records"]) for each in rebuilt["losses"]])
    return died, goes_on(regions, url, died, _given_again(rebuilt))


def _given_again(rebuilt: Mapping[str, Any]) -> Mapping[int, int]:
    return {each["partition"]: each["first_offset"] for each in rebuilt["appended"]}


def from_the_standby(regions: Regions, load_s: float, behind_s: float) -> tuple[Died, Outcome]:
    """Postgres's standby is behind the bucket, which has every object that it names."""
    died = regions.live_and_die(lambda load: at_work(regions, load, load_s), cut_s=behind_s, **CATALOG)
    promoted = regions.step("standby promoted", regions.promote)
    _, checked = regions.step("fsck", lambda: regions.command("fsck", promoted, "--quick"))
    # Deletions were not copied: objects of files that count as deleted are there.
    assert not broken(checked), checked
    assert checked["janitor"]["unknown_objects"], "objects that are newer than this Postgres"
    # From its ends on, offsets are given again.
    ends = {row["partition"]: row["next_offset"] for row in regions.runner.run(_ends(promoted))}
    return died, goes_on(regions, promoted, died, ends)


async def _ends(url: str) -> list[Mapping[str, Any]]:
    from metadata.postgres.connection import connect

    connection = await connect(url)
    try:
        return list(
            await connection.fetch("SELECT partition, next_offset FROM watermarks JOIN partitions USING (partition_id)")
        )
    finally:
        await connection.close()


def at_work(regions: Regions, load: Load, load_s: float) -> None:
    load.until_more(200)
    # A manifest is written last. The rest of its snapshot arrives within the lag, which is shorter than the load.
    wait_until(lambda: list((regions.folder / "b").glob("catalog/snapshots/*/manifest.json")))
    time.sleep(load_s)


def shown(name: str, regions: Regions, died: Died, outcome: Outcome) -> None:
    print(f"{name}: {len(died.acknowledged):,} acknowledged, {died.not_copied} objects under way; {outcome}")
    took = sum(regions.steps.values())
    print("; ".join(f"{step} {seconds:.1f} s" for step, seconds in regions.steps.items()), f"; {took:.1f} s in all")


def test_a_region_whose_bucket_copy_is_behind_its_postgres_is_rebuilt_from_the_bucket(tmp_path: Path) -> None:
    chance = random.Random(fresh_seed())
    with two_regions(tmp_path, chance, lag_s_max=2) as regions:
        died, outcome = from_the_bucket(regions, load_s=5)
        shown("bucket", regions, died, outcome)
    assert outcome.kept > 100
    # the copy lags by 2 s, the increments by half a second and a PUT, and the merges by nothing
    assert outcome.changed_s < 2 + 0.5 + SLOW_S


def test_a_region_whose_postgres_is_behind_its_bucket_copy_is_adopted(tmp_path: Path) -> None:
    chance = random.Random(fresh_seed())
    with two_regions(tmp_path, chance, lag_s_max=1) as regions:
        died, outcome = from_the_standby(regions, load_s=3, behind_s=3)
        shown("standby", regions, died, outcome)
    assert outcome.kept > 100 and outcome.moved == 0
    assert 0 < outcome.lost_s < 3 + SLOW_S


@pytest.mark.soak
def test_the_loss_of_a_region_with_figures(tmp_path: Path) -> None:
    """Prints the table of docs/operations/two-regions.md."""
    seed = fresh_seed()
    load_s = float(os.environ.get("REGIONS_LOAD_S", "120"))
    for number, lag_s in enumerate((2, 10)):
        for name in ("bucket", "standby"):
            folder = tmp_path / f"{name}-{lag_s}"
            folder.mkdir()
            with two_regions(folder, random.Random(seed + number), lag_s_max=lag_s) as regions:
                died, outcome = (
                    from_the_bucket(regions, load_s)
                    if name == "bucket"
                    else from_the_standby(regions, load_s, behind_s=lag_s + 2)
                )
                shown(f"{name}, lag up to {lag_s} s", regions, died, outcome)
