"""The examples of docs/command-line.md, run unchanged in a shell, in order. A `text` block is the expected output.

The shell finds a `siltstone` that hands its words and its stdin to this process, which runs the command: otherwise each
of the examples' commands would spend most of its time on imports. Other tests start the command itself.
"""

from __future__ import annotations

import base64
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner

from runtime.clock import SystemClock
from siltstone.cli import main
from siltstone.demo.stack import running_stack

PAGE = Path(__file__).resolve().parents[3] / "docs" / "command-line.md"
BLOCK = re.compile(r"^```sh\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
LOOK_S = 0.05
ASKING = """import base64, json, socket, sys
given = base64.b64encode(sys.stdin.buffer.read()).decode()  # before it connects: commands of a pipe are run one by one
with socket.create_connection(("127.0.0.1", {port})) as asked:
    stream = asked.makefile("rw")
    print(json.dumps([sys.argv[1:], given]), file=stream, flush=True)
    code, *written = json.loads(stream.readline())
for into, text in zip((sys.stdout, sys.stderr), written):
    into.buffer.write(base64.b64decode(text))
sys.exit(code)
"""


class Ran(NamedTuple):
    code: int
    stdout: str
    stderr: str


def run_in_shell(text: str, folder: Path, environ: Mapping[str, str], asked: socket.socket) -> Ran:
    """Run the text in a shell, and its `siltstone` commands in this process."""
    with (folder / "out").open("w+") as out, (folder / "err").open("w+") as err:
        shell = subprocess.Popen(
            ["/bin/sh", "-e", "-c", text], cwd=folder, env=environ, stdin=subprocess.DEVNULL, stdout=out, stderr=err
        )
        while shell.poll() is None:
            try:
                connection, _ = asked.accept()
            except TimeoutError:
                continue
            with connection, connection.makefile("rw") as stream:
                words, given = json.loads(stream.readline())
                ran = CliRunner().invoke(main, words, input=base64.b64decode(given))
                written = [base64.b64encode(each).decode() for each in (ran.stdout_bytes, ran.stderr_bytes)]
                print(json.dumps([ran.exit_code, *written]), file=stream, flush=True)
        out.seek(0)
        err.seek(0)
        return Ran(shell.returncode, out.read(), err.read())


@pytest.mark.timeout(300)
def test_the_examples_of_the_page_do_what_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a stack in ./siltstone-data, as on the page, and `siltstone` on the PATH
    data = tmp_path / "siltstone-data"
    data.mkdir()
    (tmp_path / "bin").mkdir()
    monkeypatch.chdir(tmp_path)
    ran = compared = 0
    options = ["--compactors", "0", "--set", "produce.linger.ms=5"]
    with (
        socket.create_server(("127.0.0.1", 0)) as asked,
        running_stack(data, SystemClock(), options=options) as stack,
    ):
        asked.settimeout(LOOK_S)
        command = tmp_path / "bin" / "siltstone"
        program = command.with_suffix(".py")
        program.write_text(ASKING.format(port=asked.getsockname()[1]))
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -IS {program} "$@"\n')
        command.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
        monkeypatch.setenv("SILTSTONE_BOOTSTRAP", stack.bootstrap)
        for example, expected in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
            done = run_in_shell(example, tmp_path, os.environ, asked)
            assert done.code == 0, f"{example}\n{done.stdout}{done.stderr}"
            ran += 1
            if expected:
                assert done.stdout == expected
                compared += 1
    assert ran >= 4 and compared >= 1
