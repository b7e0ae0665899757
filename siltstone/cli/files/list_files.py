"""`siltstone files`: the files of the metadata as a table."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import click

from metadata.contract.files import FileInfo, FileState
from metadata.contract.leveled import LeveledExtent
from metadata.rules.packed_index import iter_index
from runtime.clock import SystemClock
from runtime.text import age_text, plural, size_text
from siltstone.cli.options.system_options import SystemOptions, opened_metadata, resolved, system_options
from siltstone.cli.options.usage import WrongUsageError
from siltstone.ops.fsck import all_files
from siltstone.ops.levels_report import payload_bytes_of, share
from siltstone.terminal.output import console, json_option, print_json, print_table
from siltstone.terminal.plain import say

KEY_WIDTH_MIN = 150
"""A terminal with at least this many columns has a column for keys; in a narrower one each key has its own line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """The contents of a live file. From L1 up only live extents count."""

    partitions: int = 0
    records: int = 0
    live_bytes: int = 0
    payload_bytes: int = 0
    """Bytes of records that the file was written with, without the file's index if its size is known."""


def _read_level(_ctx: click.Context, _param: click.Parameter, value: str | None) -> int | None:
    """Read a level, written "1" or "L1"."""
    if value is None:
        return None
    level = value.upper().removeprefix("L")
    if level not in ("0", "1", "2"):
        raise WrongUsageError(f"{value!r} is not a level", remedy="give 0, 1 or 2 (or L0, L1 or L2)")
    return int(level)


@click.group()
def files() -> None:
    """Show the files that hold the records.

    \b
    Example:
      siltstone files list --data ./siltstone-data
    """


@files.command("list")
@click.option("--state", type=click.Choice(["live", "dead", "deleted", "aborted"]), help="Only files in this state.")
@click.option("--level", metavar="[0|1|2]", callback=_read_level, help="Only files of this level.")
@system_options
@json_option
def list_files(state: str | None, level: int | None, given: SystemOptions, as_json: bool) -> None:
    """List files: level, class, state, size, age, and the number of partitions and records.

    From L1 up only live extents count, and "live" is their share of the bytes that the file was written with; the next
    merge drops the rest. For files that are not live, nothing is counted. "L0 inline" has markers of transactions: its
    bytes are in the metadata, and no object has its key.

    \b
    Examples:
      siltstone files list --data ./siltstone-data
      siltstone files list --data ./siltstone-data --level 2 --state live
      siltstone files list --state live --json \\
          --metadata postgresql://siltstone@db/siltstone
    """
    with resolved(given) as urls:
        listed, contents = asyncio.run(_read(urls.metadata))
    rows = [file for file in listed if state in (None, file.state) and level in (None, file.level)]
    now_ms = SystemClock().wall_ms()
    if as_json:
        print_json([_as_json(file, contents[file.file_id]) for file in rows])
        return
    if not rows:
        say("no files")
        return
    columns = ["id", "level", "state", "size", "live", "age", "partitions", "records"]
    cells = [_cells(file, contents[file.file_id], now_ms) for file in rows]
    right = ["id", "size", "live", "age", "partitions", "records"]
    keys = [file.key for file in rows]
    if console().width >= KEY_WIDTH_MIN:
        print_table([*columns, "key"], [[*row, key] for row, key in zip(cells, keys, strict=True)], right=right)
    else:
        print_table(columns, cells, right=right, below=keys)
    say(f"{plural(len(rows), 'file')}, {size_text(sum(file.size_bytes for file in rows))}")


def _cells(file: FileInfo, contents: Contents, now_ms: int) -> list[str]:
    counted = (
        [share(contents.live_bytes, contents.payload_bytes), str(contents.partitions), str(contents.records)]
        if file.state is FileState.LIVE
        else ["-", "-", "-"]
    )
    return [
        str(file.file_id),
        f"L{file.level} {'inline' if file.inline else file.file_class or ''}".rstrip(),
        file.state.value,
        size_text(file.size_bytes),
        counted[0],
        age_text(now_ms - file.created_ms),
        *counted[1:],
    ]


async def _read(metadata_url: str) -> tuple[Sequence[FileInfo], Mapping[int, Contents]]:
    async with opened_metadata(metadata_url) as metadata:
        rows = await all_files(metadata)
        extents: dict[int, list[LeveledExtent]] = defaultdict(list)
        payload_bytes: dict[int, int] = {}
        if any(file.level for file in rows):
            for extent in (await metadata.operators.system_view()).extents:
                extents[extent.file_id].append(extent)
            payload_bytes = {
                file.file_id: payload_bytes_of(file)
                for file in (await metadata.compactors.compaction_view()).files
                if file.level
            }
    return rows, {
        file.file_id: _contents(file, extents.get(file.file_id, []), payload_bytes.get(file.file_id, 0))
        for file in rows
    }


def _contents(file: FileInfo, extents: Sequence[LeveledExtent], payload_bytes: int) -> Contents:
    if file.state is not FileState.LIVE:
        return Contents()
    if file.level:
        live_bytes = sum(extent.length for extent in extents)
        return Contents(
            partitions=len({extent.partition_id for extent in extents}),
            records=sum(extent.record_count for extent in extents),
            live_bytes=live_bytes,
            payload_bytes=max(payload_bytes, live_bytes),
        )
    rows = list(iter_index(file.index))
    partitions = len({row.partition_id for row in rows})
    if file.inline:  # many rows stand for the same bytes, and markers are no records
        return Contents(partitions=partitions, live_bytes=file.size_bytes, payload_bytes=file.size_bytes)
    row_bytes = sum(row.length for row in rows)
    return Contents(
        partitions=partitions,
        records=sum(row.last_offset - row.base_offset + 1 for row in rows),
        live_bytes=row_bytes,
        payload_bytes=row_bytes,
    )


def _as_json(file: FileInfo, contents: Contents) -> dict[str, str | int | None]:
    return {
        "file_id": file.file_id,
        "level": file.level,
        "class": file.file_class,
        "inline": bool(file.inline),
        "state": file.state.value,
        "size_bytes": file.size_bytes,
        "crc32c": file.crc32c,
        "created_ms": file.created_ms,
        "writer_id": file.writer_id,
        "epoch": file.epoch,
        "seq": file.seq,
        "job_id": file.job_id,
        "partitions": contents.partitions,
        "records": contents.records,
        "live_bytes": contents.live_bytes,
        "key": file.key,
    }
