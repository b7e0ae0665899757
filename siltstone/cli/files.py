"""`siltstone files`: the file rows of the metadata, as a table."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import click

from metadata.compaction import LeveledExtent
from metadata.packed_index import iter_index
from metadata.service import FileInfo, FileState
from siltstone.cli.output import age_text, json_option, print_json, print_table, size_text
from siltstone.cli.places import Places, opened_metadata, place_options, resolved
from siltstone.clock import SystemClock
from siltstone.fsck import all_files
from siltstone.levels_report import share


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What a file holds. From L1 up only live extents are counted: of a dead file nothing is left to count."""

    partitions: int
    records: int
    live_bytes: int


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
    """List files: level, class, state, bytes, age, how many partitions and records live in each.

    From L1 up partitions and records are those of live extents, and "live" is their share of the file; the rest is dead
    and goes with the next merge.

    \b
    Examples:
      siltstone files list --data ./siltstone-data
      siltstone files list --data ./siltstone-data --level 2 --state live
      siltstone files list --metadata postgresql://siltstone@db/siltstone --state live --json
    """
    with resolved(places) as urls:
        listed, contents = asyncio.run(_read(urls.metadata))
    rows = [file for file in listed if state in (None, file.state) and level in (None, file.level)]
    now_ms = SystemClock().wall_ms()
    if as_json:
        print_json([_as_json(file, contents[file.file_id]) for file in rows])
        return
    if not rows:
        click.echo("no files")
        return
    columns = ["id", "level", "class", "state", "size", "live", "age", "partitions", "records", "key"]
    cells = [
        [
            str(file.file_id),
            f"L{file.level}",
            file.file_class or "",
            file.state.value,
            size_text(file.size_bytes),
            share(contents[file.file_id].live_bytes, file.size_bytes),
            age_text(now_ms - file.created_ms),
            str(contents[file.file_id].partitions),
            str(contents[file.file_id].records),
            file.key,
        ]
        for file in rows
    ]
    print_table(columns, cells, right=["id", "size", "live", "age", "partitions", "records"])
    click.echo(f"{len(rows)} files, {size_text(sum(file.size_bytes for file in rows))}")


async def _read(metadata_url: str) -> tuple[Sequence[FileInfo], Mapping[int, Contents]]:
    async with opened_metadata(metadata_url) as metadata:
        rows = await all_files(metadata)
        extents: dict[int, list[LeveledExtent]] = defaultdict(list)
        if any(file.level for file in rows):
            for extent in (await metadata.system_view()).extents:
                extents[extent.file_id].append(extent)
    return rows, {file.file_id: _contents(file, extents.get(file.file_id, [])) for file in rows}


def _contents(file: FileInfo, extents: Sequence[LeveledExtent]) -> Contents:
    if file.level:
        return Contents(
            partitions=len({extent.partition_id for extent in extents}),
            records=sum(extent.record_count for extent in extents),
            live_bytes=sum(extent.length for extent in extents),
        )
    rows = list(iter_index(file.index))
    return Contents(
        partitions=len({row.partition_id for row in rows}),
        records=sum(row.last_offset - row.base_offset + 1 for row in rows),
        live_bytes=sum(row.length for row in rows) if file.state is FileState.LIVE else 0,
    )


def _as_json(file: FileInfo, contents: Contents) -> dict[str, str | int | None]:
    return {
        "file_id": file.file_id,
        "level": file.level,
        "class": file.file_class,
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
