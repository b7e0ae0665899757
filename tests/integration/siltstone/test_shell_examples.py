"""Examples of the guides for a person's own shell: bash and Python run them, as they stand, in processes of their own.

Blocks that never end are started, asked whether they are ready, and stopped by SIGTERM. Only the bootstrap address, the
words in capitals and the time of a grace are the test's.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from runtime.clock import SystemClock
from siltstone.demo.stack import running_stack
from tests.fixtures.waiting import wait_until
from tests.integration.siltstone.test_docs_examples import BOOTSTRAP, FENCE, ROOT

GRACE_MS = "2000"
STACK_OPTIONS = ("--set", "produce.linger.ms=5", "--set", f"gc.grace.ms={GRACE_MS}")


class Shell:
    """A person's shell in a folder that has `./siltstone-data`."""

    def __init__(self, folder: Path, bootstrap: str) -> None:
        self.folder = folder
        self._bootstrap = bootstrap
        self._env = {
            **os.environ,
            "HOME": str(folder),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "SILTSTONE_BOOTSTRAP": bootstrap,
            "SILTSTONE_GC_GRACE_MS": GRACE_MS,
            "PYTHONUNBUFFERED": "1",
        }

    def _words(self, language: str, text: str) -> list[str]:
        text = text.replace(BOOTSTRAP, self._bootstrap)
        return [sys.executable, "-c", text] if language == "python" else ["bash", "-euo", "pipefail", "-c", text]

    def run(self, text: str, language: str = "bash", timeout_s: float = 200) -> str:
        """The output; the exit code must be 0."""
        ran = subprocess.run(
            self._words(language, text),
            cwd=self.folder,
            env=self._env,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert ran.returncode == 0, f"{text}\n{ran.stdout[-2000:]}\n{ran.stderr[-2000:]}"
        return ran.stdout

    @contextmanager
    def running(self, text: str, ready: str, language: str = "bash") -> Generator[tuple[IO[str], str]]:
        """A block that never ends, from the time when it has printed `ready`. Yields its stdin and its output so far;
        at the end it gets SIGTERM."""
        output = self.folder / "output.txt"
        with (
            output.open("w") as log,
            subprocess.Popen(
                self._words(language, text),
                cwd=self.folder,
                env=self._env,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            ) as process,
        ):
            try:
                wait_until(lambda: ready in output.read_text(), 60, output.read_text)
                assert process.poll() is None and process.stdin is not None
                yield process.stdin, output.read_text()
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGTERM)
                process.wait(timeout=60)


def blocks(page: str) -> Iterator[tuple[str, str]]:
    """(language, text) of each example of a page."""
    for language, text in FENCE.findall((ROOT / page).read_text(encoding="utf-8")):
        if language in ("sh", "bash", "python"):
            yield language, text


def block(page: str, begin: str) -> str:
    [text] = [text for _, text in blocks(page) if text.startswith(begin)]
    return text


@contextmanager
def shell_beside_a_stack(folder: Path, *options: str) -> Generator[Shell]:
    data = folder / "siltstone-data"
    data.mkdir()
    with running_stack(data, SystemClock(), options=(*STACK_OPTIONS, *options)) as stack:
        yield Shell(folder, stack.bootstrap)


@pytest.mark.soak  # two minutes, for the intervals of the janitor and of the erasing duty
@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not at hand: the page about erasure is not run")
@pytest.mark.timeout(400)
def test_the_page_about_erasure_from_its_first_example_to_its_last(tmp_path: Path) -> None:
    with shell_beside_a_stack(tmp_path) as shell:
        for language, text in blocks("docs/erasure.md"):
            if "def was_erased" in text:
                text += '\nassert was_erased(b"bob") and not was_erased(b"nobody")\n'
            shell.run(text, language)
    assert (tmp_path / "erasure-2.json.sig").exists()


@pytest.mark.soak  # a JVM's start
@pytest.mark.timeout(400)
def test_a_topic_is_compacted_by_spark(tmp_path: Path) -> None:
    with shell_beside_a_stack(tmp_path) as shell:
        shell.run("siltstone topics create users --config cleanup.policy=compact")
        shell.run("seq 100 | sed 's/.*/k/' | siltstone produce users --partition 0 --key k")
        shell.run(block("docs/look-inside.md", "siltstone compact TOPIC").replace("TOPIC", "users"))
        assert shell.run("siltstone consume users --offset start --until-end").splitlines() == ["k"]


@pytest.mark.soak  # 200,000 records
@pytest.mark.timeout(400)
def test_the_clients_of_the_page_about_clients(tmp_path: Path) -> None:
    page = "docs/kafka-clients.md"
    with shell_beside_a_stack(tmp_path) as shell:
        shell.run("siltstone topics create hello --partitions 1")
        for begin in ("from confluent_kafka import Producer", "from kafka import KafkaProducer"):
            shell.run(block(page, begin), "python")
        if shutil.which("kcat"):
            assert "\n0 200000 a 1\n0 200001 b 2\n" in shell.run(block(page, "kcat -L"))
        printed = shell.run(block(page, "from kafka import KafkaConsumer"), "python").splitlines()
        assert printed[:200_000:99_999] == ["0 b'record 0'", "99999 b'record 99999'", "199998 b'record 99998'"]
        with shell.running(block(page, "import asyncio"), "199999 b'999' b'record 99999'", "python") as (_, said):
            assert said.startswith("0 b'0' b'record 0'\n1 b'1' b'record 1'\n")


@pytest.mark.timeout(400)
def test_more_processes_beside_dev(tmp_path: Path) -> None:
    page = "docs/look-inside.md"
    with shell_beside_a_stack(tmp_path) as shell:
        agent = block(page, "SILTSTONE_METADATA_URL=").replace("127.0.0.1:9192", "127.0.0.1:0")
        with shell.running(agent, "agent ready"):
            pass
        with shell.running(block(page, "siltstone compactor --data"), "compactor serves"):
            pass
    (tmp_path / "zones").mkdir()
    dev = block(page, "siltstone dev --agents 2").replace("siltstone dev", "siltstone dev --listen 127.0.0.1:0")
    with Shell(tmp_path / "zones", "").running(dev, "bootstrap: "):
        pass


@pytest.mark.timeout(400)
def test_the_drill_of_a_rebuild(tmp_path: Path) -> None:
    page = "docs/operations/rebuild.md"
    catalog = tmp_path / "siltstone-data" / "objects" / "catalog"
    with shell_beside_a_stack(tmp_path, "--set", "catalog.increment.interval.ms=200") as shell:
        wait_until(lambda: any(catalog.rglob("manifest*")))
        shell.run("siltstone topics create numbers --partitions 1 && seq 100 | siltstone produce numbers")
        # The first increment may have begun before the records were committed; the second has them.
        for name in ("first", "second"):
            before = len(list(catalog.glob("increments/*")))
            shell.run(f"siltstone topics create {name}")
            wait_until(lambda before=before: len(list(catalog.glob("increments/*"))) > before)
    with shell.running(block(page, "mkdir drill"), "postgresql://") as (stdin, said):
        address = next(line for line in said.splitlines() if line.startswith("postgresql://"))
        commands = block(page, "URL=").split("\n", 1)[1]
        assert "clean" in shell.run(f"URL={address}\n{commands}")
        stdin.write("\n")
        stdin.flush()
        wait_until(lambda: not (tmp_path / "drill" / "postgres" / "postmaster.pid").exists())
    dev, consume = block(page, "siltstone dev --data drill").splitlines()
    with shell.running(dev, "bootstrap: "):
        read = shell.run(consume.replace("TOPIC", "numbers"))
    assert [line for line in read.splitlines() if line.isdigit()] == [str(number) for number in range(1, 101)]


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not at hand: the examples about logs are not run")
def test_the_way_from_a_clients_error_to_the_file(tmp_path: Path) -> None:
    page = "docs/operations/logs-and-traces.md"
    options = ("log.format=json", "log.level=debug", "log.slow.request.ms=1")
    with shell_beside_a_stack(tmp_path, *(word for each in options for word in ("--set", each))) as shell:
        shell.run("siltstone topics create orders && seq 10 | siltstone produce orders")
    for name in ("agents.log", "compactors.log"):
        shutil.copy(tmp_path / "siltstone-data" / "dev.log", tmp_path / name)
    lines = [json.loads(line) for line in (tmp_path / "agents.log").read_text().splitlines() if line.startswith("{")]
    sealed = next(line for line in lines if line["event"] == "records sealed")
    request = (
        block(page, "# 1.").replace("orders-7", sealed["client_id"]).replace("4242", str(sealed["correlation_id"]))
    )
    assert [sealed] == [
        line for line in map(json.loads, shell.run(request).splitlines()) if line["event"] == "records sealed"
    ]
    life = shell.run(re.sub(r'"l0/[^"]*"', f'"{sealed["key"]}"', block(page, "# 2.")))
    events = {json.loads(line)[1] for line in life.splitlines()} - {"slow request"}
    assert events == {"file committed", "file put", "file sealed", "records sealed"}
    shown = shell.run(block(page, "# errors by kind").replace("10.0.3.7:", sealed["peer"]))
    assert '"api":"' in shown and "records sealed" in shown


@pytest.mark.soak  # two simulated days
def test_a_load_that_is_simulated() -> None:
    shell = Shell(ROOT, "")
    assert "lag" in shell.run(block("docs/look-inside.md", "siltstone compactor simulate"))


def test_completion_in_a_persons_shell(tmp_path: Path) -> None:
    (tmp_path / ".config" / "fish" / "completions").mkdir(parents=True)
    shell = Shell(tmp_path, "")
    assert "siltstone" in shell.run(block("docs/command-line.md", "eval ") + "complete -p siltstone\n")
    assert "siltstone" in (tmp_path / ".config/fish/completions/siltstone.fish").read_text()
