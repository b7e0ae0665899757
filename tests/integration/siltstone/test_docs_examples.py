"""The guides' examples run as they stand, in order: blocks of `sh` and `python`; a `text` block is what came out.

Blocks of `bash` are for a person's shell (`make`, other programs, commands that never end) and are not run. Python
blocks of a guide share their names, as in one session. The bootstrap address and the commands' default are those of the
test's own stack; everything else is the pages'.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

from runtime.clock import SystemClock
from siltstone.cli import main
from siltstone.demo.stack import running_stack

ROOT = Path(__file__).resolve().parents[3]
PAGES = (
    *("README.md", "docs/look-inside.md", "docs/compacted-topics.md", "docs/reading-topics.md", "docs/tables.md"),
    *("docs/erasure.md", "docs/transactions.md"),
)
GUIDES = [ROOT / page for page in PAGES]
BOOTSTRAP = "127.0.0.1:9092"
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OPTIONAL = ("duckdb", "pandas", "polars")
"""Libraries that examples import. Their examples run where they are installed; `tests/skips.txt` lists that."""
OPTIONS = ("--set", "produce.linger.ms=5")


class Block(NamedTuple):
    line: int
    language: str
    text: str
    expected: str | None
    """The content of the `text` block directly after it."""


def blocks(page: str) -> Iterator[Block]:
    """The runnable blocks. Only blank lines may be between a block and its output."""
    found = list(FENCE.finditer(page))
    for index, match in enumerate(found):
        if match[1] not in ("sh", "python"):
            continue
        follower = found[index + 1] if index + 1 < len(found) else None
        expected = None
        if follower is not None and follower[1] == "text" and not page[match.end() : follower.start()].strip():
            expected = follower[2]
        yield Block(page.count("\n", 0, match.start()) + 1, match[1], match[2], expected)


def run_sh(text: str, line: int) -> str:
    """Run `siltstone` commands; the guides contain no others. They run in this process, which is faster."""
    output = ""
    for command in filter(None, text.replace("\\\n", " ").splitlines()):
        words = shlex.split(command, comments=True)
        assert words[0] == "siltstone", command
        words, into = (words[:-2], words[-1]) if words[-2] == ">" else (words, "")
        ran = CliRunner().invoke(main, words[1:])
        assert ran.exit_code == 0, f"line {line}: {command}\n{ran.output}"
        if into:
            Path(into).write_text(ran.stdout, encoding="utf-8")
        else:
            output += ran.stdout
    return output


def run_python(text: str, line: int, names: dict[str, Any]) -> str:
    # blank lines first, so that a traceback names the line of the page
    code = compile("\n" * line + text, "guide", "exec")
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(code, names)
    return output.getvalue()


def optional(block: Block) -> str:
    """The library of the reader's choice that a block begins with; "" if it begins with none."""
    return next((name for name in OPTIONAL if block.text.startswith(f"import {name}")), "")


@pytest.mark.parametrize("library", OPTIONAL)
def test_the_examples_of_a_library_are_run_where_it_is_installed(library: str) -> None:
    found = [block for guide in GUIDES for block in blocks(guide.read_text(encoding="utf-8"))]
    assert library in map(optional, found)
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed: its examples are not run")


@pytest.mark.timeout(300)
def test_the_examples_of_the_guides_do_what_the_guides_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a stack in ./siltstone-data, as in the guides
    data = tmp_path / "siltstone-data"
    data.mkdir()
    monkeypatch.chdir(tmp_path)
    compared = 0
    with running_stack(data, SystemClock(), options=OPTIONS) as stack:
        monkeypatch.setenv("SILTSTONE_BOOTSTRAP", stack.bootstrap)
        for guide in GUIDES:
            names: dict[str, Any] = {"__name__": guide.stem}
            for block in blocks(guide.read_text(encoding="utf-8")):
                if (library := optional(block)) and find_spec(library) is None:
                    continue
                text = block.text.replace(BOOTSTRAP, stack.bootstrap)
                output = run_sh(text, block.line) if block.language == "sh" else run_python(text, block.line, names)
                if block.expected is not None:
                    assert output == block.expected, f"{guide.name}, line {block.line}"
                    compared += 1
    assert compared >= 8


def test_blocks_and_what_they_print_are_found() -> None:
    page = "a\n```python\nprint(1)\n```\n\n```text\n1\n```\n\n```sh\ntrue\n```\nwords\n```text\nnot its output\n```\n"
    assert list(blocks(page)) == [Block(2, "python", "print(1)\n", "1\n"), Block(10, "sh", "true\n", None)]
