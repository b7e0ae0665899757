"""`siltstone record diagnose`: trace one record from the metadata down to its bytes."""

from __future__ import annotations

import asyncio
import sys

import click

from compactor.planning.options import plan_options
from siltstone.cli.options.completion import TOPIC
from siltstone.cli.options.system_options import SystemOptions, Urls, opened, resolved, system_options
from siltstone.ops.record_report import STEP_COLUMNS, Diagnosis, diagnosis_json, pairs_of, step_cells
from siltstone.ops.record_trace import diagnose
from siltstone.terminal.output import json_option, print_json, print_pairs, print_table
from siltstone.terminal.plain import say


@click.group()
def record() -> None:
    """Show where one record is stored, or why it is not there.

    \b
    Example:
      siltstone record diagnose orders 0 1042 --data ./siltstone-data
    """


@record.command("diagnose")
@click.argument("topic", type=TOPIC)
@click.argument("partition", type=click.IntRange(min=0))
@click.argument("offset", type=click.IntRange(min=0))
@system_options
@json_option
def diagnose_command(topic: str, partition: int, offset: int, given: SystemOptions, as_json: bool) -> None:
    """Show where the record at OFFSET in PARTITION of TOPIC is stored: level, file, batch, CRC and earlier files.

    If the record is not there, the answer is why: not written yet, below the log start, compacted away (and by which
    newer record, as long as a file that held it still exists) or erased (and by which erasure), and in which objects
    its bytes still lie, or that none holds them. Reads the metadata and the object store; needs no agent. For a record
    that was removed, the command lists the whole bucket. Exit code 1 if the record should be there but cannot be read.

    \b
    Examples:
      siltstone record diagnose orders 0 1042 --data ./siltstone-data
      siltstone record diagnose users 3 7 --json \\
          --metadata postgresql://siltstone@db/siltstone \\
          --object-store 's3://records/prod?region=eu-central-1'
    """
    with resolved(given) as urls:
        found = asyncio.run(_read(urls, topic, partition, offset, given))
    if as_json:
        print_json(diagnosis_json(found))
    else:
        _print(found)
    sys.exit(1 if found.verdict.is_fault else 0)


async def _read(urls: Urls, topic: str, partition: int, offset: int, given: SystemOptions) -> Diagnosis:
    async with opened(urls) as system:
        options = plan_options(given.settings)
        return await diagnose(system.metadata, system.store, topic, partition, offset, given.hints, options)


def _print(found: Diagnosis) -> None:
    print_pairs(pairs_of(found))
    if found.steps:
        say()
        print_table(list(STEP_COLUMNS), [step_cells(each) for each in found.steps], right=["file"])
    if found.why or found.remedy:
        say()
        say(f"{found.verdict.value}: {found.why}" if found.why else found.verdict.value)
    if found.remedy:
        say(f"remedy: {found.remedy}")
