"""`siltstone dev` with its compactor: a child process like the agents or, for memory://, a part of the only process."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from runtime.errors import BadInputError
from runtime.settings.table import Settings
from siltstone.embedded.children import child_settings
from siltstone.embedded.stack import StackSize, run_stack
from tests.fixtures.waiting import wait_until
from tests.integration.siltstone.test_dev import alive, children_in, descendants, dev, get, read, write

SCALED = {"SILTSTONE_COMPACTION_L0_WAIT_MAX_MS": "300"}


def until_leveled(bootstrap: str, levels_dir: Path) -> None:
    """Write until there is an L1 file."""

    def leveled() -> bool:
        write(bootstrap, b"x")
        return any(path.suffix == ".silt" for path in (levels_dir / "l1").rglob("*"))

    wait_until(leveled)


def test_it_runs_a_compactor_that_merges_and_ends_with_it(tmp_path: Path) -> None:
    data = tmp_path / "silt"
    with dev(data, compactors=1, environ=SCALED) as running:
        bootstrap = running.bootstrap()
        write(bootstrap, b"first")
        until_leveled(bootstrap, data / "objects")
        assert b"first" in read(bootstrap)
        # then it prints the address of its metrics, and run.json has it too
        assert running.process.stdout is not None
        line = running.process.stdout.readline()
        [url] = running.run_file()["compactor_metrics_urls"]
        assert line == f"compactor metrics: {url}\n"
        assert url not in running.run_file()["metrics_urls"]
        assert 'siltstone_compactor_duty{duty="plan"} 1' in get(url)[1]
        below = descendants(running.process.pid)
        assert len(children_in("compactor", below)) == 1
        assert running.stop() == 0, running.errors
        assert alive(below) == set()
        assert "compactor stops" in running.errors


def test_a_compactor_that_dies_ends_all_and_is_named(tmp_path: Path, postgres_url: str) -> None:
    with dev(tmp_path / "silt", compactors=1, environ={"SILTSTONE_METADATA_URL": postgres_url}) as running:
        running.bootstrap()
        wait_until(lambda: "compactor serves" in running.errors)
        [victim] = children_in("compactor", descendants(running.process.pid))
        os.kill(victim, signal.SIGKILL)
        assert running.process.wait(60) == 1
        assert f"compactor 1 (process {victim}) ended with signal SIGKILL" in running.errors


def test_memory_is_compacted_in_the_same_process(tmp_path: Path) -> None:
    with dev(tmp_path / "silt", "--object-store", "memory://", compactors=1, environ=SCALED) as running:
        bootstrap = running.bootstrap()
        url = running.run_file()["metrics_url"]
        write(bootstrap, b"first")

        def merged() -> bool:
            write(bootstrap, b"x")
            return 'siltstone_merges_total{kind="level",outcome="done"}' in get(url)[1]

        wait_until(merged)
        assert b"first" in read(bootstrap)
        assert descendants(running.process.pid) == set()


async def test_several_compactors_cannot_share_one_process_s_memory(tmp_path: Path) -> None:
    memory = Settings(listen="127.0.0.1:0", metadata_url="memory://", object_store_url="memory://")
    with pytest.raises(BadInputError, match="2 compactors cannot share it"):
        await run_stack(memory, data=tmp_path / "silt", size=StackSize(agents=1, compactors=2), on_ready=print)


def test_compactors_serve_their_metrics_on_the_ports_after_those_of_the_agents() -> None:
    each = child_settings(Settings(listen="127.0.0.1:9092", metrics_listen="127.0.0.1:8000"), 2, 2)
    assert [one.metrics_listen for one in each] == [f"127.0.0.1:{port}" for port in (8000, 8001, 8002, 8003)]
    assert [one.listen for one in each] == [f"127.0.0.1:{port}" for port in (9092, 9093, 0, 0)]
    with pytest.raises(BadInputError, match="3 agents and compactors need the ports from 65534 up"):
        child_settings(Settings(listen="127.0.0.1:0", metrics_listen="127.0.0.1:65534"), 2, 1)
