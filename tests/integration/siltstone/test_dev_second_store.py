"""`siltstone dev` with a second store for L0 files: agents and a compactor as processes, over two directories."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.fixtures.dev import COMMAND, running_dev
from tests.fixtures.waiting import wait_until

SOON = ("--set", "compaction.l0.wait.max.ms=1000", "--set", "gc.grace.ms=1000")


def siltstone(data: Path, *words: str, given: str = "") -> str:
    done = subprocess.run(
        [*COMMAND, *words, "--data", str(data)], input=given, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def files(store: Path, level: str) -> int:
    return sum(path.is_file() for path in (store / level).rglob("*"))


def test_l0_files_go_to_the_second_store_and_merged_ones_to_the_first(tmp_path: Path) -> None:
    data, second = tmp_path / "data", tmp_path / "second"
    first = data / "objects"
    store = ("--set", f"produce.store.url={second.as_uri()}")
    with running_dev(data, *store, *SOON) as dev:
        siltstone(data, "topics", "create", "t", "--partitions", "1")
        siltstone(data, "produce", "t", given="one\ntwo\n")
        assert siltstone(data, "consume", "t", "-n", "2").split() == ["one", "two"]
        assert files(first, "l0") == 0
        # The compactor reads them there, writes L1 to the first store, and lets the janitor delete them.
        wait_until(lambda: files(first, "l1") > 0)
        assert (second / "cluster.json").is_file() and (first / "second-store.json").is_file()
        dev.stop()
    # The next start needs the setting, and finds everything.
    refused = subprocess.run(
        [*COMMAND, "dev", "--data", str(data), "--listen", "127.0.0.1:0"], capture_output=True, text=True, timeout=60
    )
    assert refused.returncode != 0 and "produce.store.url is empty" in refused.stderr
    with running_dev(data, *store, *SOON):
        siltstone(data, "produce", "t", given="three\n")
        found = siltstone(data, "consume", "t", "-n", "3")
        assert found.split() == ["one", "two", "three"]
