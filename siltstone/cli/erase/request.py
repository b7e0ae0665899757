"""`siltstone erase TOPIC`: find out what goes, ask, write tombstones, store the request, and wait if asked to."""

from __future__ import annotations

import asyncio
import math
import secrets
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from compactor.planning.dirtiness import config_int
from compactor.planning.erasure_times import TimePart, earliest_ms, time_parts
from compactor.planning.options import plan_options
from metadata.contract.compactors import PartitionView
from metadata.contract.topics import Topic
from metadata.erasures.contract import KeyMark, NewErasure
from runtime.clock import SystemClock
from runtime.errors import BadInputError
from runtime.text import age_text, numbers_text, plural
from siltstone.cli.erase.keys import STDIN, given_keys, key_options
from siltstone.cli.erase.waiting import request_stays, wait_for_the_end
from siltstone.cli.groups.asking import confirm, tell
from siltstone.cli.options.agent_options import bootstrap_of, bootstrap_option
from siltstone.cli.options.completion import TOPIC
from siltstone.cli.options.system_options import SystemOptions, Urls, opened_metadata, resolved, system_options
from siltstone.cli.options.usage import WrongUsageError, as_usage
from siltstone.kafka.offset_spec import parse_duration, parse_time
from siltstone.kafka.record_format import shown_field
from siltstone.kafka.retrying import RetryingClient
from siltstone.ops.compaction.compact_now import configs_in_force, find_topic
from siltstone.ops.compaction.evidence import is_compacted
from siltstone.ops.erasure.report import NOT_COVERED
from siltstone.ops.erasure.request import (
    Draft,
    Newest,
    PartitionKey,
    begin_of,
    check_count,
    check_deadline,
    compacted_marks,
    draft,
    plain_marks,
)
from siltstone.ops.erasure.status import open_text
from siltstone.ops.erasure.tombstones import KeyLog
from siltstone.processes.stopping import INTERRUPTED
from siltstone.terminal.output import console, json_option, print_json, print_pairs
from siltstone.terminal.plain import say

SECRET_BYTES = 32
ABSENT_SHOWN_MAX = 5


class TopicChangedError(BadInputError):
    """The topic is not the one that the plan was made of. Nothing was written."""


@dataclass(kw_only=True)
class Asked:
    """A request before it is stored."""

    topic: Topic
    keys: Sequence[bytes]
    before_ms: int | None
    deadline_ms: int
    waits: bool
    is_compacted: bool
    wait_ms: int
    delete_retention_ms: int
    parts: Callable[[int | None], Sequence[TimePart]]
    """The parts of the earliest deadline, by `rest_ms`."""
    marks: Mapping[int, Sequence[KeyMark]] = field(default_factory=dict[int, Sequence[KeyMark]])
    """Of a topic that is not compacted."""
    newest: dict[PartitionKey, Newest] = field(default_factory=dict[PartitionKey, Newest])
    ends: Mapping[int, int] = field(default_factory=dict[int, int])
    stays_from: Mapping[int, int] | None = None
    draft: Draft | None = None

    @property
    def rest_ms(self) -> int | None:
        return self.delete_retention_ms if self.draft is not None and self.draft.has_tombstones else None

    def plan(self) -> None:
        """Judge what was read, and check the deadline. Raises BadInputError."""
        if self.is_compacted:
            self.draft = draft(self.keys, self.newest, self.ends, self.stays_from)
        check_deadline(self.deadline_ms, self.parts(self.rest_ms))


@click.command("request")
@click.argument("topic", type=TOPIC)
@key_options
@click.option("--before", metavar="TIME", help="Only records before this time: a date, ms, or -15m. Newer ones stay.")
@click.option("--deadline", default="7d", show_default=True, metavar="DURATION", help="Done within: 7d, 36h, 90m.")
@click.option("--wait", "waits", is_flag=True, help="Begin at once, wait for the end, and print the report's summary.")
@click.option("--timeout", type=click.FloatRange(min=0), metavar="SECONDS", help="With --wait: wait at most this long.")
@click.option("--yes", is_flag=True, help="Erase without asking.")
@bootstrap_option
@system_options
@json_option
def request(
    topic: str,
    keys: Sequence[str],
    keys_file: Path | None,
    keys_format: str,
    before: str | None,
    deadline: str,
    waits: bool,
    timeout: float | None,
    yes: bool,
    bootstrap: str,
    given: SystemOptions,
    as_json: bool,
) -> None:
    """Remove the records of keys in TOPIC from every object, by a deadline.

    The request is stored, and compactors carry it out: they rewrite every file that holds records of the keys below
    the end that the topic has now. Records that are written later stay. Offsets stay as they are.

    In a compacted topic the command first reads the topic through an agent, and writes a tombstone for each key that
    has a value, so that readers hear of it. The tombstones go too, delete.retention.ms later.

    Without --wait compactors begin after half of the time to spare, and until then use merges that happen anyway.
    Ctrl-C ends only the waiting; the request stays.

    \b
    Examples:
      siltstone erase users --key alice --wait --data ./siltstone-data
      siltstone erase visits --keys-file gone.txt --before 2026-01-01 --yes \\
          --metadata postgresql://siltstone@db/siltstone \\
          --object-store s3://records/prod
    """
    if timeout is not None and not math.isfinite(timeout):
        raise WrongUsageError(f"--timeout {timeout} is no number of seconds", remedy="leave --timeout out to wait on")
    if timeout is not None and not waits:
        raise WrongUsageError("--timeout has a meaning only with --wait", remedy="add --wait, or leave --timeout out")
    now_ms = int(SystemClock().wall_ms())
    with as_usage():
        before_ms = None if before is None else parse_time(before, now_ms)
        deadline_ms = parse_duration(deadline)
    if before_ms is not None and before_ms > now_ms:
        raise WrongUsageError(
            f"--before {before} lies in the future",
            remedy="leave --before out: that erases all records of the keys that are there now",
        )
    if keys_file == STDIN and not yes:
        raise WrongUsageError("stdin has the keys, so this command cannot ask", remedy="add --yes")
    wanted = given_keys(keys, keys_file, keys_format)
    with resolved(given) as urls:
        asked = asyncio.run(_prepare(urls, given, topic, wanted, before_ms, deadline_ms, bootstrap, waits=waits))
        _print_plan(asked)
        confirm(yes, f"erase {plural(len(wanted), 'key')} of topic {topic!r} for ever?")
        erasure_id, stored = _stored(urls, given, asked, bootstrap)
        with request_stays(given, erasure_id):
            if not as_json:
                say(f"erasure {erasure_id} is requested: `siltstone erase status {erasure_id}{given.hints.places}`")
            elif not waits:
                print_json(_json(erasure_id, asked, stored))
            if waits:
                timeout_ms = None if timeout is None else timeout * 1000
                wait_for_the_end(urls, given, erasure_id, timeout_ms=timeout_ms, as_json=as_json)


async def _prepare(
    urls: Urls,
    given: SystemOptions,
    name: str,
    keys: Sequence[bytes],
    before_ms: int | None,
    deadline_ms: int,
    bootstrap: str,
    *,
    waits: bool,
) -> Asked:
    """Read what is needed to say what goes. Changes nothing."""
    async with opened_metadata(urls.metadata) as metadata:
        topic = await find_topic(metadata, name, hints=given.hints)
        views = await metadata.operators.partition_views(topic.topic_id)
    check_count(len(keys), len(views))
    compacted = is_compacted(configs_in_force(topic, views))
    options = plan_options(given.settings)
    wait_ms = _config(views, "min.compaction.lag.ms") if compacted else 0
    asked = Asked(
        topic=topic,
        keys=keys,
        before_ms=before_ms,
        deadline_ms=deadline_ms,
        waits=waits,
        is_compacted=compacted,
        wait_ms=wait_ms,
        delete_retention_ms=_config(views, "delete.retention.ms"),
        parts=lambda rest_ms: time_parts(options, wait_ms=wait_ms, rest_ms=rest_ms),
    )
    check_deadline(deadline_ms, asked.parts(None))
    if not compacted and before_ms is None:
        asked.marks = plain_marks(keys, {view.partition: view.high_watermark for view in views})
    else:
        async with RetryingClient(_agents(given, bootstrap), SystemClock(), told=tell) as client:
            log = _key_log(client, urls, topic, restores=before_ms is not None)
            stays_from = None if before_ms is None else await log.offsets_at(before_ms)
            if not compacted:
                asked.marks = plain_marks(keys, stays_from or {})
            else:
                asked.stays_from = stays_from
                with _reading(name) as show:
                    asked.ends = await log.look(frozenset(keys), asked.newest, on_read=show)
    asked.plan()
    if not asked.marks and (asked.draft is None or not compacted_marks(asked.draft, _any(asked.draft))):
        raise BadInputError(
            f"topic {name} has no record" + ("" if before_ms is None else " before that time") + ": nothing to erase",
            remedy="none, if that is expected; `siltstone topics describe` shows the offsets",
        )
    return asked


def _stored(
    urls: Urls, given: SystemOptions, asked: Asked, bootstrap: str
) -> tuple[int, Mapping[int, Sequence[KeyMark]]]:
    """After Ctrl-C ends the process with 130."""
    try:
        return asyncio.run(_store(urls, given, asked, bootstrap))
    except KeyboardInterrupt:
        left = ""
        if asked.is_compacted:
            left = " Tombstones of some keys may be written"
            left += ", and may hide values that are newer than --before." if asked.before_ms is not None else "."
        say(
            f"stopped before the erasure was stored, as far as this command knows.{left} See whether it is there:\n"
            f"  siltstone erase status{given.hints.places}\n"
            "and if not, run the command again.",
            err=True,
        )
        sys.exit(INTERRUPTED)


async def _store(
    urls: Urls, given: SystemOptions, asked: Asked, bootstrap: str
) -> tuple[int, Mapping[int, Sequence[KeyMark]]]:
    """Write the tombstones and store the request. Returns its id and the marks."""
    marks = asked.marks
    await _check_unchanged(urls, given, asked)
    if asked.is_compacted:
        async with RetryingClient(_agents(given, bootstrap), SystemClock(), told=tell) as client:
            restores = asked.before_ms is not None
            log = _key_log(client, urls, asked.topic, restores=restores)
            # What came while the person thought: a value that is newer than --before must not be hidden.
            asked.ends = await log.look(frozenset(asked.keys), asked.newest, asked.ends)
            asked.plan()
            plan = asked.draft or Draft({}, ())
            written = await log.delete(plan.to_delete, asked.ends)
            marks = compacted_marks(plan, written)
    async with opened_metadata(urls.metadata) as metadata:
        new = NewErasure(
            topic_id=asked.topic.topic_id,
            marks=marks,
            wait_ms=asked.wait_ms,
            rest_ms=asked.rest_ms,
            begin_ms=begin_of(asked.deadline_ms, asked.parts(asked.rest_ms), waits=asked.waits),
            deadline_ms=asked.deadline_ms,
            secret=secrets.token_bytes(SECRET_BYTES),
        )
        return await metadata.erasures.request_erasure(new), marks


def _key_log(client: RetryingClient, urls: Urls, topic: Topic, *, restores: bool) -> KeyLog:
    async def name_transactions(open_at: Mapping[int, int]) -> str:
        async with opened_metadata(urls.metadata) as metadata:
            return await open_text(metadata, topic, open_at)

    return KeyLog(
        client,
        topic.name,
        len(topic.partition_ids),
        SystemClock(),
        tell,
        restores=restores,
        name_transactions=name_transactions,
    )


async def _check_unchanged(urls: Urls, given: SystemOptions, asked: Asked) -> None:
    """While the person thought, the topic may have been made again or its policy changed. Raises TopicChangedError."""
    async with opened_metadata(urls.metadata) as metadata:
        topic = await find_topic(metadata, asked.topic.name, hints=given.hints)
        views = await metadata.operators.partition_views(topic.topic_id)
    why = ""
    if topic.topic_id != asked.topic.topic_id:
        why = "was deleted and made again"
    elif is_compacted(configs_in_force(topic, views)) != asked.is_compacted:
        why = "has another cleanup.policy"
    elif len(views) != len(asked.topic.partition_ids):
        why = "has more partitions"
    if why:
        raise TopicChangedError(
            f"topic {topic.name} {why} since this command looked; nothing was requested or written",
            remedy="run the command again",
        )


def _any(plan: Draft) -> Mapping[PartitionKey, int]:
    """Offsets that the tombstones may get, to see whether there will be a mark at all."""
    return dict.fromkeys(plan.to_delete, 0)


def _agents(given: SystemOptions, bootstrap: str) -> str:
    return bootstrap_of(given.data, bootstrap)


def _config(views: Sequence[PartitionView], name: str) -> int:
    return config_int(views[0], name) if views else 0


def _print_plan(asked: Asked) -> None:
    """Say on stderr what will go: stdout is for the result."""
    rest_ms = asked.rest_ms
    parts = asked.parts(rest_ms)
    before = "everything of them that is there now"
    if asked.before_ms is not None:
        before = "their records before that time, as far as offsets tell"
    pairs = {
        "keys": plural(len(asked.keys), "key"),
        "partitions": _partitions_text(len(asked.topic.partition_ids)),
        "goes": before,
        "deadline": f"{age_text(asked.deadline_ms)}; at the earliest possible, {age_text(earliest_ms(parts))}",
    }
    if asked.draft is not None:
        new = len(asked.draft.to_delete)
        there = sum(mark.tombstone for mark in asked.draft.marks.values())
        if absent := sorted(set(asked.keys) - {key for _, key in asked.newest}):
            shown = ", ".join(map(shown_field, absent[:ABSENT_SHOWN_MAX]))
            pairs["not there"] = f"{plural(len(absent), 'key')} without a record now: {shown}" + (
                ", ..." if len(absent) > ABSENT_SHOWN_MAX else ""
            )
        pairs["tombstones"] = f"{new:,} to be written first" + (f", {there:,} there already" if there else "")
    else:
        pairs["not looked up"] = (
            "whether there are records of the keys;"
            f" `siltstone erase verify {asked.topic.name}` with the same keys tells"
        )
    pairs["not covered"] = NOT_COVERED
    print_pairs(pairs, title=f"erase from {asked.topic.name}", stderr=True)


def _partitions_text(count: int) -> str:
    return f"{plural(count, 'partition')}: {numbers_text(range(count))}"


def _json(erasure_id: int, asked: Asked, marks: Mapping[int, Sequence[KeyMark]]) -> dict[str, Any]:
    return {
        "erasure": erasure_id,
        "topic": asked.topic.name,
        "keys": len(asked.keys),
        "partitions": sorted(marks),
        "marks": sum(map(len, marks.values())),
        "tombstones": sum(mark.tombstone for each in marks.values() for mark in each),
        "deadline_ms": asked.deadline_ms,
        "earliest_ms": earliest_ms(asked.parts(asked.rest_ms)),
        "not_covered": NOT_COVERED,
    }


@contextmanager
def _reading(topic: str) -> Generator[Callable[[int, int], None]]:
    """Show how much of the topic is read, on a terminal."""
    if not sys.stderr.isatty():
        yield lambda _done, _all: None
        return
    with console(stderr=True).status(f"reading {topic}") as line:
        yield lambda done, whole: line.update(f"reading {topic}: {done:,} of {whole:,} offsets")
