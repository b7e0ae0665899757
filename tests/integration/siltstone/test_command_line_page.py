"""The examples of docs/command-line.md, run unchanged in a shell, in order. A `text` block is the expected output."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.clock import SystemClock
from siltstone.demo.stack import running_stack

PAGE = Path(__file__).resolve().parents[3] / "docs" / "command-line.md"
BLOCK = re.compile(r"^```sh\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)


@pytest.mark.timeout(300)
def test_the_examples_of_the_page_do_what_the_page_says(tmp_path: Path) -> None:
    # given a stack in ./siltstone-data, as on the page, and `siltstone` on the PATH
    data = tmp_path / "siltstone-data"
    data.mkdir()
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "siltstone"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m siltstone "$@"\n')
    command.chmod(0o755)
    ran = compared = 0
    with running_stack(data, SystemClock(), options=["--set", "produce.linger.ms=5"]) as stack:
        environ = {
            **os.environ,
            "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
            "SILTSTONE_BOOTSTRAP": stack.bootstrap,
        }
        for example, expected in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
            done = subprocess.run(
                ["/bin/sh", "-e", "-c", example], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, f"{example}\n{done.stdout}{done.stderr}"
            ran += 1
            if expected:
                assert done.stdout == expected
                compared += 1
    assert ran >= 4 and compared >= 1
