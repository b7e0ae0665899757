"""`siltstone file inspect`: the index and extents of one object, checked against its bytes."""

from __future__ import annotations

import asyncio
import json
import sys
import uuid
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import click

from metadata.contract.files import FileInfo
from metadata.contract.store import MetadataStore
from runtime.errors import BadInputError
from runtime.text import plural, size_text
from siltstone.cli.files.inline_file import InlineFile, print_inline, print_inline_json, read_inline
from siltstone.cli.options.system_options import (
    SystemOptions,
    opened_metadata,
    opened_store,
    resolved,
    resolved_store,
    system_options,
)
from siltstone.kafka.record_format import OutputRecord, json_record, readable, time_text
from siltstone.ops.file_records import file_records
from siltstone.ops.fsck import all_files
from siltstone.terminal.output import json_option, print_json, print_pairs, print_table, print_title
from siltstone.terminal.plain import say
from storage.format.file_properties import encode_properties
from storage.format.inspect import BatchReport, ExtentReport, FileReport, inspect_file

INPUTS_SHOWN = 10
"""Inputs that the table lists; `--json` lists all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Inspected:
    report: FileReport
    names: Mapping[uuid.UUID, str]
    """The topics' names by id, as far as they are known."""
    records: Sequence[OutputRecord]
    is_cut: bool
    """There are more records."""


@click.group()
def file() -> None:
    """Inspect one file and check its CRCs.

    \b
    Example:
      siltstone file inspect l0/7f/2026010112/1-3-0190a0b0-...silt \\
          --data ./siltstone-data
    """


@file.command()
@click.argument("key", metavar="KEY|ID")
@click.option("--batches", is_flag=True, help="Also list the record batches.")
@click.option("--records", is_flag=True, help="Also list the records.")
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=100,
    show_default=True,
    metavar="N",
    help="With --records: at most this many; 0: all.",
)
@system_options
@json_option
def inspect(key: str, batches: bool, records: bool, limit: int, given: SystemOptions, as_json: bool) -> None:
    """Show trailer, index and extents of an object and check its CRCs.

    Name the object by its KEY, or by the ID of its file in `siltstone files list`. Exit code 1 if the file is damaged.
    An L0 file may also contain batches that were refused at commit. Only the metadata knows which, and which offsets
    the others got, so without it (--object-store alone) the records of an L0 file have no offsets. The markers that
    end transactions lie in no object: of such a file its row is shown.

    \b
    Examples:
      siltstone file inspect 1042 --data ./siltstone-data --records
      siltstone file inspect KEY --data ./siltstone-data --batches
      siltstone file inspect KEY --json \\
          --object-store 's3://records/prod?region=eu-central-1'
    """
    records_max = 0 if not records else limit or sys.maxsize
    if given.data is None and not given.metadata_url and not key.isdecimal():
        # The store alone is enough for a key.
        found = asyncio.run(_read(key, resolved_store(given), "", batches=batches, records_max=records_max))
    else:
        with resolved(given) as urls:
            reading = _read(key, urls.object_store, urls.metadata, batches=batches, records_max=records_max)
            found = asyncio.run(reading)
    if isinstance(found, InlineFile):
        print_inline_json(found) if as_json else print_inline(found)
        sys.exit(0 if found.is_sound else 1)
    if as_json:
        print_json({**_as_json(found.report, found.names), **_records_json(found, records_max)})
    else:
        _print(found, batches=batches, records=records)
    sys.exit(0 if found.report.is_sound else 1)


async def _read(
    key: str, store_url: str, metadata_url: str, *, batches: bool, records_max: int
) -> _Inspected | InlineFile:
    names: Mapping[uuid.UUID, str] = {}
    index: bytes | None = None
    if metadata_url or key.isdecimal():
        async with opened_metadata(metadata_url) as metadata:
            topics = await metadata.agents.list_topics()
            names = {each.topic_id: each.name for each in topics}
            row = await _row_of(metadata, key)
        if row is not None and row.inline:
            places = {id_: (each.name, number) for each in topics for number, id_ in enumerate(each.partition_ids)}
            return read_inline(row, places)
        if row is not None:
            key, index = row.key, row.index if row.level == 0 else None
    async with opened_store(store_url) as store:
        report = await inspect_file(store, key, walk_batches=batches)
        if report.properties is not None:  # these names are older, but here also for topics that were deleted
            names = {topic_id: topic.name for topic_id, topic in report.properties.topics.items()} | dict(names)
        shown: list[OutputRecord] = []
        # Damaged bytes are reported, not decoded.
        sound = [each.row for each in report.extents if each.crc_matches is not False and not each.damage]
        if records_max:
            async with aclosing(file_records(store, key, sound, names, index)) as reading:
                async for record in reading:
                    if len(shown) == records_max:
                        return _Inspected(report=report, names=names, records=shown, is_cut=True)
                    shown.append(record)
        return _Inspected(report=report, names=names, records=shown, is_cut=False)


async def _row_of(metadata: MetadataStore, key: str) -> FileInfo | None:
    """The row of a key or file id; None for a key that the metadata do not know. Raises BadInputError."""
    if key.isdecimal():
        wanted = int(key)
        rows = await metadata.operators.files(after_file_id=min(wanted, 2**63) - 1, limit=1)
        if not rows or rows[0].file_id != wanted:
            raise BadInputError(
                f"the metadata has no file {wanted}; nothing was read",
                remedy="`siltstone files list` shows the ids; an object that the metadata does not know has only a key",
            )
        return rows[0]
    return next((each for each in await all_files(metadata) if each.key == key), None)


def _records_json(found: _Inspected, records_max: int) -> dict[str, object]:
    if not records_max:
        return {}
    return {"records": [json_record(each) for each in found.records], "records_cut": found.is_cut}


def _print_records(found: _Inspected) -> None:
    print_title("records")
    for record in found.records:
        say(readable(record, with_topic=True))
    if found.is_cut:
        say(f"and more: the first {plural(len(found.records), 'record')} are shown, --limit 0 shows all")
    elif not found.records:
        say("none")


def _print(found: _Inspected, *, batches: bool, records: bool) -> None:
    report = found.report
    writer = f"{report.file_key.writer_id}, epoch {report.file_key.epoch}" if report.file_key else "not a key of ours"
    trailer = report.trailer
    print_pairs(
        {
            "key": report.key,
            "level": f"L{report.level}",
            "size": f"{report.size_bytes:,} bytes ({size_text(report.size_bytes)})",
            "created": time_text(report.created_ms),
            "stored": time_text(report.last_modified_ms),
            "writer": writer,
            "format": f"version {trailer.format_version}",
            "index": f"{trailer.index_length:,} bytes at {trailer.index_position:,}, "
            f"CRC-32C {trailer.index_crc32c:08x}",
            "extents": f"{len(report.extents):,}",
            "sections": f"{len(report.sections):,}",
            **_merge_pairs(report),
        }
    )
    columns = ["topic", "partition", "position", "bytes", "offsets", "records", "blocks", "from", "to", "CRC-32C"]
    cells = [_extent_cells(extent, found.names) for extent in report.extents]
    print_table(columns, cells, right=["position", "bytes", "records", "blocks"])
    if batches:
        _print_batches(report)
    if records:
        _print_records(found)
    for number, extent in enumerate(report.extents):
        if extent.is_flagged:
            reason = report.properties.flagged.get(number, "") if report.properties else ""
            say(f"flagged: partition {extent.row.partition} at {extent.row.position}: {reason or 'unread'}")
        if extent.damage:
            say(f"damaged: partition {extent.row.partition} at {extent.row.position}: {extent.damage}")
    if report.damage:
        say(f"damaged: {report.damage}")
    say("sound" if report.is_sound else "DAMAGED")


def _merge_pairs(report: FileReport) -> Mapping[str, str | Sequence[str]]:
    """The merge that wrote the file, its topics and its inputs; empty for an L0 file."""
    properties = report.properties
    if properties is None:
        return {}
    topics = [
        f"{topic.name} ({topic_id}), config version {topic.config_version}"
        for topic_id, topic in properties.topics.items()
    ]
    shown = [f"{file_id} ({key})" for file_id, key in properties.inputs[:INPUTS_SHOWN]]
    more = len(properties.inputs) - len(shown)
    return {
        "merge": f"job {properties.job_id}, {properties.kind}, epoch {properties.epoch}",
        "class": properties.file_class,
        "topics": topics or "-",
        "inputs": [*shown, *([f"and {more:,} more"] if more else [])] or "-",
    }


def _extent_cells(extent: ExtentReport, names: Mapping[uuid.UUID, str]) -> list[str]:
    row = extent.row
    crc = "not read" if extent.crc_matches is None else "matches" if extent.crc_matches else "DIFFERS"
    offsets = "at commit" if row.base_offset < 0 else f"{row.base_offset} to {row.last_offset}"
    times = [time_text(row.min_timestamp_ms), time_text(row.max_timestamp_ms)]
    blocks = f"{len(extent.blocks):,}" if extent.blocks else "-"
    sizes = [f"{row.position:,}", f"{row.length:,}", offsets, f"{row.record_count:,}", blocks]
    return [names.get(row.topic_id, str(row.topic_id)), str(row.partition), *sizes, *times, f"{row.crc32c:08x} {crc}"]


def _print_batches(report: FileReport) -> None:
    columns = [
        "partition",
        "position",
        "bytes",
        "records",
        "codec",
        "producer",
        "epoch",
        "sequence",
        "last time",
        "CRC",
    ]
    cells = [_batch_cells(extent.row.partition, batch) for extent in report.extents for batch in extent.batches]
    print_table(columns, cells, right=["position", "bytes", "records"], title="batches")


def _batch_cells(partition: int, batch: BatchReport) -> list[str]:
    kinds = [name for name, there in (("txn", batch.is_transactional), ("control", batch.is_control)) if there]
    producer = [batch.producer_id, batch.producer_epoch, batch.base_sequence]
    return [
        str(partition),
        f"{batch.position:,}",
        f"{batch.size_bytes:,}",
        f"{batch.records_count:,}",
        " ".join([batch.codec, *kinds]),
        *("-" if value < 0 else str(value) for value in producer),
        time_text(batch.max_timestamp_ms),
        "ok" if batch.crc_matches else "DIFFERS",
    ]


def _as_json(report: FileReport, names: Mapping[uuid.UUID, str]) -> dict[str, object]:
    return {
        "key": report.key,
        "level": report.level,
        "size_bytes": report.size_bytes,
        "created_ms": report.created_ms,
        "last_modified_ms": report.last_modified_ms,
        "format_version": report.trailer.format_version,
        "sound": report.is_sound,
        "extents": [
            {
                **{name: value for name, value in extent.row._asdict().items() if name != "topic_id"},
                "topic_id": str(extent.row.topic_id),
                "topic": names.get(extent.row.topic_id),
                "crc_matches": extent.crc_matches,
                "damage": extent.damage,
                "flagged": extent.is_flagged,
                "block_index": [block._asdict() for block in extent.blocks],
                "batches": [
                    {name: getattr(batch, name) for name in BatchReport.__dataclass_fields__}
                    for batch in extent.batches
                ],
            }
            for extent in report.extents
        ],
        "sections": [section._asdict() for section in report.sections],
        "damage": report.damage,
        "properties": json.loads(encode_properties(report.properties)) if report.properties else None,
    }
