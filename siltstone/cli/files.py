"""`siltstone files`: the file rows of the metadata, as a table."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import click

from metadata.packed_index import iter_index
from metadata.service import FileInfo
from siltstone.cli.output import age_text, json_option, print_json, print_table, size_text
from siltstone.cli.places import Places, opened_metadata, place_options, resolved
from siltstone.clock import SystemClock
from siltstone.fsck import all_files


@click.group()
def files() -> None:
    """Show the files that hold the records.

    \b
    Example:
      siltstone files list --data ./siltstone-data
    """


@files.command("list")
@click.option("--state", type=click.Choice(["live", "dead", "deleted", "aborted"]), help="Only files in this state.")
@click.option("--level", type=click.IntRange(0, 2), help="Only files of this level.")
@place_options
@json_option
def list_files(state: str | None, level: int | None, places: Places, as_json: bool) -> None:
    """List files: level, state, bytes, age, how many partitions lie in each.

    \b
    Examples:
      siltstone files list --data ./siltstone-data
      siltstone files list --metadata postgresql://siltstone@db/siltstone --state live --json
    """
    with resolved(places) as urls:
        rows = asyncio.run(_read(urls.metadata))
    rows = [file for file in rows if state in (None, file.state) and level in (None, file.level)]
    now_ms = SystemClock().wall_ms()
    if as_json:
        print_json([_as_json(file) for file in rows])
        return
    if not rows:
        click.echo("no files")
        return
    columns = ["id", "level", "state", "size", "age", "partitions", "records", "key"]
    cells = [
        [
            str(file.file_id),
            f"L{file.level}",
            file.state.value,
            size_text(file.size_bytes),
            age_text(now_ms - file.created_ms),
            str(_partitions(file)),
            str(_records(file)),
            file.key,
        ]
        for file in rows
    ]
    print_table(columns, cells, right=["id", "size", "age", "partitions", "records"])
    click.echo(f"{len(rows)} files, {size_text(sum(file.size_bytes for file in rows))}")


async def _read(metadata_url: str) -> Sequence[FileInfo]:
    async with opened_metadata(metadata_url) as metadata:
        return await all_files(metadata)


def _partitions(file: FileInfo) -> int:
    return len({row.partition_id for row in iter_index(file.index)})


def _records(file: FileInfo) -> int:
    return sum(row.last_offset - row.base_offset + 1 for row in iter_index(file.index))


def _as_json(file: FileInfo) -> dict[str, str | int | None]:
    return {
        "file_id": file.file_id,
        "level": file.level,
        "state": file.state.value,
        "size_bytes": file.size_bytes,
        "crc32c": file.crc32c,
        "created_ms": file.created_ms,
        "writer_id": file.writer_id,
        "epoch": file.epoch,
        "seq": file.seq,
        "partitions": _partitions(file),
        "records": _records(file),
        "key": file.key,
    }
