"""Random commits of deltas to a table."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from pyiceberg.transforms import DayTransform, IdentityTransform

from spark_jobs.tables.iceberg.live_files import dead_positions, live_files
from tests.unit.spark_jobs.tables.iceberg.delta_table import DeltaTable, check


class History:
    """Random commits, each judged at once; at the end all snapshots are read again."""

    def __init__(self, folder: Path, **properties: str) -> None:
        seed = random.randrange(1 << 32)
        print("seed", seed)
        self.chance = random.Random(seed)
        self.lake = DeltaTable(folder, **properties)
        self.then: dict[int, list[tuple[Any, ...]]] = {}

    def step(self) -> None:
        lake, chance = self.lake, self.chance
        live = live_files(lake.table)
        touched = chance.sample(live, chance.randint(0, min(len(live), 4)))
        with lake.delta() as delta:
            for _ in range(chance.choice([0, 0, 1, 2, 5])):
                rows = lake.new_rows(chance.randint(1, 20), chance.choice(["p", "q", None]), chance.randint(0, 2))
                delta.add(lake.write(rows))
            for each in touched:
                if chance.random() < 0.2:
                    lake.go(delta, each)
                else:
                    lake.die(delta, each, *chance.choices(range(each.rows), k=chance.randint(1, each.rows)))

    def another_program(self) -> None:
        """A commit of pyiceberg's own."""
        self.lake.table.add_files([self.lake.write(self.lake.new_rows(3))])

    def judge(self) -> None:
        lake = self.lake
        assert lake.read() == lake.wanted()
        check(lake.table)
        for live in live_files(lake.table):
            gone = [number for number, row in enumerate(lake.expected[live.path]) if row is None]
            assert dead_positions(lake.table.io, live).tolist() == gone
        self.then[lake.table.current_snapshot().snapshot_id] = lake.wanted()

    def repartition(self) -> None:
        with self.lake.table.update_spec() as update:
            if self.lake.table.spec().is_unpartitioned():
                update.add_field("place", IdentityTransform())
                update.add_field("day", DayTransform(), "on_day")
            else:
                update.remove_field("place")
