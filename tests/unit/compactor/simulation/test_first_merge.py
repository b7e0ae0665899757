"""The table of docs/compacted-topics.md about the first dedupe of a merge, simulated again."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from compactor.planning.options import plan_options
from compactor.planning.spec import MIB, MergeKind, MergeSpec
from compactor.simulation.cluster import Load
from compactor.simulation.run import Simulation, Workers
from runtime.settings.table import Settings

PAGE = (Path(__file__).resolve().parents[4] / "docs" / "compacted-topics.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| (\d+) \| (\d+) ([KM])iB/s \| simulated (\d+) s(, with eight merges at once)? \|$", re.MULTILINE)
OPTIONS = plan_options(Settings())


def first_merge_s(load: Load, workers: Workers) -> float:
    """When the first merge of L1 runs has ended."""
    simulation = Simulation(load, workers, OPTIONS)
    cluster, ended_ms = simulation.cluster, list[float]()
    merge = cluster.merge

    def noted(spec: MergeSpec) -> None:
        if spec.kind is MergeKind.MERGE:
            ended_ms.append(cluster.now_ms)
        merge(spec)

    cluster.merge = noted
    simulation.run(0.15, samples=1)
    return ended_ms[0] / 1000


def test_the_table_has_rows() -> None:
    assert len(ROW.findall(PAGE)) == 5


@pytest.mark.parametrize(("agents", "rate", "unit", "said_s", "eight"), ROW.findall(PAGE))
def test_a_simulated_row_is_what_the_simulator_says(agents: str, rate: str, unit: str, said_s: str, eight: str) -> None:
    load = Load(agents=int(agents), bytes_per_second=float(int(rate) * {"K": 1 << 10, "M": MIB}[unit]))
    assert round(first_merge_s(load, Workers(count=8 if eight else 4))) == int(said_s)


def test_a_run_is_begun_early_when_as_many_bytes_come_as_the_page_says() -> None:
    assert f"while less than {OPTIONS.l0_bytes_min // MIB} MiB come in these {OPTIONS.l0_wait_ms // 1000} s" in PAGE
