"""`siltstone erase verify`: read the whole bucket, and say whether it holds records of keys."""

from __future__ import annotations

import asyncio
import sys
import uuid
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from metadata.contract.store import MetadataStore
from metadata.erasures.contract import ERASURE_ID_MAX
from runtime.text import plural, size_text
from siltstone.cli.erase.keys import given_keys, key_options
from siltstone.cli.options.system_options import SystemOptions, Urls, opened, resolved, system_options
from siltstone.cli.options.usage import WrongUsageError
from siltstone.ops.compaction.compact_now import NoSuchTopicError, find_topic
from siltstone.ops.erasure.status import NoSuchErasureError
from siltstone.ops.erasure.verify import NO_OFFSET, KeySearch, MarkSearch, Search, Verified, verify_bucket
from siltstone.ops.hint_options import HintOptions
from siltstone.terminal.output import console, json_option, print_json, print_table
from siltstone.terminal.plain import say

SHOWN_MAX = 100
"""Records and damaged objects that are listed; of more, the number. --json has all."""


@click.command("verify")
@click.argument("target", metavar="ID|TOPIC")
@key_options
@system_options
@json_option
def verify(
    target: str,
    keys: Sequence[str],
    keys_file: Path | None,
    keys_format: str,
    given: SystemOptions,
    as_json: bool,
) -> None:
    """Read every object of the bucket, and say whether one holds records of erased keys.

    With the ID of an erasure: the records that it removes, its tombstones included; newer ones are not counted. With a
    TOPIC and keys: any record of them. The command reads all files of L0, L1 and L2, whether live, dead or without a
    row, and believes no metadata. Exit code 1 if it finds a record, or a place that it cannot read.

    \b
    Examples:
      siltstone erase verify 7 --data ./siltstone-data
      siltstone erase verify users --key alice --data ./siltstone-data
    """
    has_keys = bool(keys) or keys_file is not None
    if not has_keys and not (target.isascii() and target.isdigit()):
        raise WrongUsageError(
            f"{target!r} is not the id of an erasure",
            remedy="give an id, as `siltstone erase status` lists them, or a topic with --key or --keys-file",
        )
    wanted = given_keys(keys, keys_file, keys_format) if has_keys else ()
    with resolved(given) as urls:
        name, count, found = asyncio.run(_verify(urls, given.hints, target, wanted))
    if as_json:
        print_json(
            {
                "topic": name,
                "keys": count,
                "is_clean": found.is_clean,
                "found": [each._asdict() for each in found.found],
                "unread": [each._asdict() for each in found.unread],
                "objects": found.objects,
                "read_bytes": found.read_bytes,
                "records": found.records,
                "unsearched": sorted(found.unsearched),
            }
        )
    else:
        _print(name, count, found)
        if has_keys and found.unsearched:
            objects = plural(len(found.unsearched), "object")
            say(
                f"not searched: {objects} with records of deleted topics. If one of these topics was called {name}, its"
                " records of the keys may be there: a deleted topic's bytes go by purge.deadline.ms"
            )
    sys.exit(0 if found.is_clean else 1)


async def _verify(urls: Urls, hints: HintOptions, target: str, keys: Sequence[bytes]) -> tuple[str, int, Verified]:
    async with opened(urls) as system:
        if keys:
            try:
                topic = await find_topic(system.metadata, target, hints=hints)
            except NoSuchTopicError as error:
                if not target.isdigit():
                    raise
                raise WrongUsageError(
                    f"{error.message}; with --key or --keys-file the first word is a topic",
                    remedy=f"leave the keys out to verify erasure {target}, or name a topic",
                ) from error
            topic_id, name, count = topic.topic_id, topic.name, len(keys)
            search: Search = KeySearch(keys)
        else:
            topic_id, name, count, search = await _erasure(system.metadata, int(target), hints)
        with _shown() as show:
            found = await verify_bucket(system.metadata, system.store, topic_id, search, on_read=show)
    return name, count, found


async def _erasure(metadata: MetadataStore, erasure_id: int, hints: HintOptions) -> tuple[uuid.UUID, str, int, Search]:
    found = await metadata.erasures.erasures(erasure_id=erasure_id) if erasure_id <= ERASURE_ID_MAX else ()
    if not found:
        raise NoSuchErasureError(
            f"there is no erasure {erasure_id}", remedy=f"`siltstone erase status{hints.places}` lists them"
        )
    marks = await metadata.erasures.erasure_marks(erasure_id)
    keys = len({mark.key_hash for each in marks.values() for mark in each})
    return found[0].topic_id, found[0].topic_name, keys, MarkSearch(marks)


def _print(name: str, keys: int, found: Verified) -> None:
    read = f"{plural(found.objects, 'object')} ({size_text(found.read_bytes)}) were read, with \
{plural(found.records, 'keyed record')} of {name}"
    if found.found:
        rows = [
            [
                each.object_key,
                each.state,
                str(each.partition),
                "unknown" if each.offset == NO_OFFSET else str(each.offset),
                "tombstone" if each.is_tombstone else "value",
            ]
            for each in found.found[:SHOWN_MAX]
        ]
        print_table(["object", "file", "partition", "offset", "record"], rows, right=["partition", "offset"])
        _more(len(found.found))
    if found.unread:
        print_table(["object", "cannot be read"], [list(each) for each in found.unread[:SHOWN_MAX]])
        _more(len(found.unread))
    if found.is_clean:
        say(f"in no object: {plural(keys, 'key')} of {name}; {read}")
    elif found.found:
        there = len({each.object_key for each in found.found})
        say(f"found: {plural(len(found.found), 'record')} in {plural(there, 'object')}; {read}")
    else:
        say(f"not found, but {plural(len(found.unread), 'place')} cannot be read; {read}")


def _more(count: int) -> None:
    if count > SHOWN_MAX:
        say(f"and {count - SHOWN_MAX:,} more; --json has all")


@contextmanager
def _shown() -> Generator[Callable[[int, int], None]]:
    """Show how much of the bucket is read, on a terminal."""
    if not sys.stderr.isatty():
        yield lambda _done, _all: None
        return
    with console(stderr=True).status("listing the bucket") as line:
        yield lambda done, whole: line.update(f"{size_text(done)} of {size_text(whole)} are read")
