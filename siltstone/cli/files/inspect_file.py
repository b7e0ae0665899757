"""`siltstone file inspect`: the index and extents of one object, checked against its bytes."""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import UTC, datetime

import click

from runtime.text import size_text
from siltstone.cli.options.system_options import SystemOptions, opened_store, resolved_store, system_options
from siltstone.terminal.output import json_option, print_json, print_pairs, print_table
from storage.format.file_properties import encode_properties
from storage.format.inspect import BatchReport, ExtentReport, FileReport, inspect_file

INPUTS_SHOWN = 10
"""Inputs that the table lists; `--json` lists all."""


@click.group()
def file() -> None:
    """Inspect one file and check its CRCs.

    \b
    Example:
      siltstone file inspect l0/7f/2026010112/1-3-0190a0b0-...silt \\
          --data ./siltstone-data
    """


@file.command()
@click.argument("key")
@click.option("--batches", is_flag=True, help="Also list the record batches.")
@system_options
@json_option
def inspect(key: str, batches: bool, given: SystemOptions, as_json: bool) -> None:
    """Show trailer, index and extents of the object KEY and check its CRCs.

    Exit code 1 if the file is damaged. `siltstone files list` shows the keys. An L0 file may also contain batches that
    were refused at commit; only the metadata knows which batches of an L0 file are in the log.

    \b
    Examples:
      siltstone file inspect KEY --data ./siltstone-data --batches
      siltstone file inspect KEY --json \\
          --object-store 's3://records/prod?region=eu-central-1'
    """
    report = asyncio.run(_read(key, resolved_store(given), batches=batches))
    if as_json:
        print_json(_as_json(report))
    else:
        _print(report, batches=batches)
    sys.exit(0 if report.is_sound else 1)


async def _read(key: str, store_url: str, *, batches: bool) -> FileReport:
    async with opened_store(store_url) as store:
        return await inspect_file(store, key, walk_batches=batches)


def _print(report: FileReport, *, batches: bool) -> None:
    writer = f"{report.file_key.writer_id}, epoch {report.file_key.epoch}" if report.file_key else "not a key of ours"
    trailer = report.trailer
    print_pairs(
        {
            "key": report.key,
            "level": f"L{report.level}",
            "size": f"{report.size_bytes:,} bytes ({size_text(report.size_bytes)})",
            "created": _time_text(report.created_ms),
            "stored": _time_text(report.last_modified_ms),
            "writer": writer,
            "format": f"version {trailer.format_version}",
            "index": f"{trailer.index_length:,} bytes at {trailer.index_position:,}, "
            f"CRC-32C {trailer.index_crc32c:08x}",
            "extents": f"{len(report.extents):,}",
            "sections": f"{len(report.sections):,}",
            **_merge_pairs(report),
        }
    )
    columns = ["topic id", "partition", "position", "bytes", "offsets", "records", "blocks", "from", "to", "CRC-32C"]
    cells = [_extent_cells(extent) for extent in report.extents]
    print_table(columns, cells, right=["position", "bytes", "records", "blocks"])
    if batches:
        _print_batches(report)
    for number, extent in enumerate(report.extents):
        if extent.is_flagged:
            reason = report.properties.flagged.get(number, "") if report.properties else ""
            click.echo(f"flagged: partition {extent.row.partition} at {extent.row.position}: {reason or 'unread'}")
        if extent.damage:
            click.echo(f"damaged: partition {extent.row.partition} at {extent.row.position}: {extent.damage}")
    if report.damage:
        click.echo(f"damaged: {report.damage}")
    click.echo("sound" if report.is_sound else "DAMAGED")


def _merge_pairs(report: FileReport) -> dict[str, str]:
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
        "topics": "\n".join(topics) or "-",
        "inputs": "\n".join([*shown, *([f"and {more:,} more"] if more else [])]) or "-",
    }


def _extent_cells(extent: ExtentReport) -> list[str]:
    row = extent.row
    crc = "not read" if extent.crc_matches is None else "matches" if extent.crc_matches else "DIFFERS"
    offsets = "at commit" if row.base_offset < 0 else f"{row.base_offset} to {row.last_offset}"
    times = [_time_text(row.min_timestamp_ms), _time_text(row.max_timestamp_ms)]
    blocks = f"{len(extent.blocks):,}" if extent.blocks else "-"
    sizes = [f"{row.position:,}", f"{row.length:,}", offsets, f"{row.record_count:,}", blocks]
    return [str(row.topic_id), str(row.partition), *sizes, *times, f"{row.crc32c:08x} {crc}"]


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
        _time_text(batch.max_timestamp_ms),
        "ok" if batch.crc_matches else "DIFFERS",
    ]


def _time_text(time_ms: int) -> str:
    if time_ms < 0:
        return "-"
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
    except (OverflowError, ValueError, OSError):  # clients may stamp records with any 64-bit number
        return f"{time_ms} ms"


def _as_json(report: FileReport) -> dict[str, object]:
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
