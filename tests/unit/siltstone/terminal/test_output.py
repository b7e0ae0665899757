"""Sizes, ages and tables as people read them."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.errors import BadInputError
from runtime.text import age_text, plural, size_text
from siltstone.cli import fail
from siltstone.ops.hint_options import HintOptions, hint_options_for, option
from siltstone.terminal import output
from siltstone.terminal.output import print_pairs, print_table, print_when_taken


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (8 << 20, "8.0 MiB"),
        (300 << 20, "300 MiB"),
        (1 << 30, "1.0 GiB"),
        (5 << 40, "5.0 TiB"),
    ],
)
def test_sizes_are_short(size_bytes: int, text: str) -> None:
    assert size_text(size_bytes) == text


@pytest.mark.parametrize(
    ("age_ms", "text"),
    [(-5, "0s"), (59_999, "59s"), (90_000, "1m30s"), (3_600_000, "1h00m"), (90_000_000, "1d01h")],
)
def test_ages_are_short(age_ms: int, text: str) -> None:
    assert age_text(age_ms) == text


def test_cells_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    # given values that look like markup of rich, and a key as long as an object key
    key = "l0/7f/2026010112/12-3-0190a0b0-1111-7222-8333-444455556666.silt"
    print_table(["key", "size"], [[key, "[red]1"]], right=["size"])
    print_pairs({"name": "[b]x[/b]"})
    shown = capsys.readouterr().out
    assert key in shown
    assert "[red]1" in shown and "[b]x[/b]" in shown


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Terminals that are 40 columns wide."""
    monkeypatch.setattr(output, "PIPED_WIDTH", 40)


@pytest.mark.usefixtures("narrow")
def test_a_table_that_is_too_wide_breaks_headings_and_cuts_the_column_that_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_table(["cleaned through", "last pass", "error"], [["1234567", "9s ago", "e" * 50]], cut="error")
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 40
    assert lines[0].split() == ["cleaned", "last"] and lines[1].split() == ["through", "pass", "error"]
    assert lines[-1].split()[:4] == ["1234567", "9s", "ago", "e" * 22 + "…"]


@pytest.mark.usefixtures("narrow")
def test_a_table_that_cannot_be_read_in_the_width_has_a_column_on_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    columns = ["partition", "dirty ratio", "cleaned through", "high watermark", "last pass"]
    row = ["0", "0.41", "1234567890", "1234567999", "9s ago"]
    print_table(columns, [row, row], title="orders", right=["partition"], below=["held by job 7", ""])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 40 and lines[0].split() == ["orders"]
    assert [line.split(maxsplit=1)[0] for line in lines[1:6]] == ["partition", "dirty", "cleaned", "high", "last"]
    assert lines[3].split() == ["cleaned", "through", "1234567890"]
    assert lines[6:8] == ["  held by job 7", ""]  # a blank line between two rows
    # a little more room, and it is a table again
    print_table(columns[:3], [row[:3]])
    assert len(capsys.readouterr().out.splitlines()) == 3


@pytest.mark.usefixtures("narrow")
def test_lines_below_rows_are_never_cut(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["id"], [["1"], ["2"]], below=["k" * 60, "l" * 60])
    assert capsys.readouterr().out.splitlines()[2:] == ["1", "  " + "k" * 60, "2", "  " + "l" * 60]


def test_a_title_is_as_wide_as_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_pairs({"a": "1"}, title="settings: every partition is cleaned through the end it had")
    assert capsys.readouterr().out.startswith("settings: every partition is cleaned through the end it had\n")


def test_one_is_not_many() -> None:
    assert (plural(1, "file"), plural(2, "file"), plural(1_000, "file")) == ("1 file", "2 files", "1,000 files")
    assert (plural(1, "batch"), plural(2, "batch")) == ("1 batch", "2 batches")


def test_hints_repeat_what_was_given_so_that_a_shell_reads_it_back() -> None:
    nothing = hint_options_for(data="", metadata_url="", object_store_url="", config="", assignments=(), runs=False)
    assert nothing == HintOptions(places="", agents="", compactor="siltstone compactor")
    data = hint_options_for(
        data="my data", metadata_url="", object_store_url="", config="", assignments=["a=1"], runs=True
    )
    assert data.places == " --data 'my data' --set a=1" and data.agents == " --data 'my data'"
    assert data.compactor == "siltstone compactor --data 'my data' --set a=1"
    urls = hint_options_for(
        data="",
        metadata_url="postgresql://me:secret@h/d",
        object_store_url="s3://b",
        config="",
        assignments=(),
        runs=False,
    )
    assert urls.places == " --metadata 'postgresql://me:***@h/d' --object-store s3://b"
    assert option("data", "") == ""


PRINTS = "from siltstone.terminal.output import print_bytes; print_bytes(bytes(1_000_000)); print_bytes(b'end')"
PRINTS_WHEN_TAKEN = """
import asyncio
from siltstone.terminal.output import print_when_taken as print_bytes
async def main():
    await print_bytes(bytes(1_000_000))
    await print_bytes(b'end')
asyncio.run(main())
"""


@pytest.fixture(params=["", "1"], ids=["buffered", "unbuffered"])
def environ(request: pytest.FixtureRequest) -> dict[str, str]:
    return {**os.environ, "PYTHONUNBUFFERED": request.param}


@pytest.fixture(params=[PRINTS, PRINTS_WHEN_TAKEN], ids=["at once", "when taken"])
def prints(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.parametrize("blocking", [True, False])
def test_bytes_arrive_whole_in_a_pipe_that_takes_them_in_parts(
    environ: dict[str, str], blocking: bool, prints: str
) -> None:
    reads, writes = os.pipe()
    os.set_blocking(writes, blocking)
    with subprocess.Popen([sys.executable, "-c", prints], stdout=writes, env=environ) as process:
        os.close(writes)
        with open(reads, "rb") as pipe:
            assert pipe.read() == bytes(1_000_000) + b"end"
    assert process.returncode == 0


def test_a_reader_that_leaves_in_the_middle_of_a_write_is_noticed(environ: dict[str, str], prints: str) -> None:
    command = [sys.executable, "-c", prints.replace("b'end'", "b''")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.read(1) == b"\0"  # the write has started, and it is larger than any pipe
        process.stdout.close()
        assert b"BrokenPipeError" in process.stderr.read()
    assert process.returncode == 1


@pytest.mark.parametrize("prints", [PRINTS, PRINTS_WHEN_TAKEN], ids=["at once", "when taken"])
def test_bytes_arrive_whole_in_a_file_and_in_nothing(environ: dict[str, str], prints: str, tmp_path: Path) -> None:
    for path in (tmp_path / "out", Path(os.devnull)):
        with path.open("wb") as out:
            subprocess.run([sys.executable, "-c", prints], stdout=out, env=environ, check=True)
    assert (tmp_path / "out").read_bytes() == bytes(1_000_000) + b"end"


async def test_while_a_pipe_takes_nothing_the_event_loop_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    reads, writes = os.pipe()
    with os.fdopen(reads, "rb") as pipe, os.fdopen(writes, "w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        printing = asyncio.create_task(print_when_taken(bytes(1_000_000)))
        for _ in range(100):
            await asyncio.sleep(0)
        assert not printing.done()
        got = await asyncio.to_thread(pipe.read, 900_000)
        assert not printing.done() or len(got) == 900_000
        assert await asyncio.to_thread(pipe.read, 100_000) == bytes(100_000)
        await printing
        # and a stop does not wait for the reader
        printing = asyncio.create_task(print_when_taken(bytes(1_000_000)))
        await asyncio.sleep(0.01)
        printing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await printing


def test_a_file_error_names_the_file_and_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = {
        tmp_path / "absent" / "report.json": ("No such file or directory", "must be there"),
        tmp_path: ("Is a directory", "name a file"),
    }
    for path, (why, remedy) in wrong.items():
        with pytest.raises(OSError, match=why) as refused:
            path.write_text("")
        with pytest.raises(SystemExit):
            fail(refused.value)
        error, mend = capsys.readouterr().err.splitlines()
        assert error == f"error: {path}: {why}"
        assert mend.startswith("remedy: ") and remedy in mend


def test_a_network_error_without_a_file_keeps_its_words(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        fail(OSError("multiple exceptions"))
    assert capsys.readouterr().err == "error: multiple exceptions\n"


def test_escape_sequences_in_names_never_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    evil = "x\x1b]0;owned\x07\x9b31m\x7f"
    output.print_table(["group"], [[evil]], title=evil)
    output.print_pairs({evil: evil})
    output.print_json({"name": evil})
    output.print_table(["group"], [["a"]], below=[evil])
    with pytest.raises(SystemExit):
        fail(BadInputError(evil, remedy=evil))
    said = "".join(capsys.readouterr())
    assert not [each for each in said if each != "\n" and not each.isprintable()]
    assert "\\x1b]0;owned" in said


def test_json_with_control_characters_reads_back_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"a": "\x9b \u202e \U000e0001 é ∅ 😀"}
    output.print_json(value)
    assert json.loads(capsys.readouterr().out) == value
