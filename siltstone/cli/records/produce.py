"""`siltstone produce`: write the lines of stdin or of a file to a topic, as records."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import select
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO, cast

import click

from runtime.clock import Clock, SystemClock
from runtime.errors import SiltstoneError
from runtime.ids import SystemIds
from runtime.text import plural, size_text
from siltstone.cli.options.agent_options import agent_options, given_agents, name_hints
from siltstone.cli.options.completion import TOPIC
from siltstone.cli.options.usage import WrongUsageError, as_usage
from siltstone.kafka.client import KafkaClient
from siltstone.kafka.producing import (
    BATCH_BYTES,
    ProduceOptions,
    Refused,
    Stored,
    TopicWriter,
    WriteResults,
    input_bytes,
)
from siltstone.kafka.record_format import (
    VALUE_LINES,
    InputRecord,
    RecordReader,
    UnreadRecord,
    parse_format,
    parse_header,
)
from siltstone.kafka.retrying import RetryingClient
from siltstone.ops.hint_options import HintOptions
from siltstone.processes.stopping import INTERRUPTED, stop_signals, unless
from siltstone.terminal.output import console, json_option, print_json
from siltstone.terminal.plain import say
from wire.codecs import Codec
from wire.records import Headers

READ_BYTES = 1 << 18
"""Bytes of one read from the input."""
CHUNKS_WAITING_MAX = 64
"""Reads that may wait for the writer; they bound the memory of a fast input."""
WRITE_BYTES_MAX = 16 << 20
"""Bytes of records that one write gathers at most, for all partitions."""
STOP_MS = 4_000
"""Time that records in flight get after the first signal: with the time to close, the command ends within 5 s."""
ERRORS_SHOWN = 20
PARTITIONS_SHOWN = 8
THROTTLED_SHOWN_MS = 500
"""Shorter waits for a quota are not told one by one."""


@dataclass(kw_only=True)
class Tally:
    """The numbers of written and failed records so far."""

    topic: str
    verbose: bool
    written: int = 0
    written_bytes: int = 0
    failed: int = 0
    errors_shown: int = 0
    failed_unshown: int = 0
    """Records of errors that were not shown, because many were."""
    given: int = 0
    """The number of the last record that was taken from the input."""
    throttled_ms: float = 0
    """The time that records waited because of a quota."""
    ranges: dict[int, tuple[int, int, int]] = field(default_factory=dict[int, tuple[int, int, int]])
    """By partition: first offset, last offset, number of records. An unknown offset is -1."""

    def stored(self, stored: Stored) -> None:
        count = len(stored.records)
        self.written += count
        self.written_bytes += sum(map(input_bytes, stored.records))
        first, last, before = self.ranges.get(stored.partition, (-1, -1, 0))
        if stored.base_offset >= 0:
            first = stored.base_offset if first < 0 else first
            last = stored.base_offset + count - 1
        self.ranges[stored.partition] = first, last, before + count
        if self.verbose:
            for number in range(count):
                offset = "?" if stored.base_offset < 0 else stored.base_offset + number
                say(f"{self.topic} {stored.partition}@{offset}")

    def refused(self, refused: Refused) -> None:
        first, last = refused.records[0].number, refused.records[-1].number
        count = len(refused.records)
        which = f"record {first}" if count == 1 else f"records {first} to {last}"
        if count < last - first + 1:  # those between them went to other partitions
            which = f"{count:,} records from {first} to {last}"
        self.fail(which, count, refused.why, refused.remedy)

    def unread(self, unread: UnreadRecord) -> None:
        self.fail(f"record {unread.number}", 1, unread.why, "check --format, which describes the input")

    def throttled(self, wait_ms: float) -> None:
        self.throttled_ms += wait_ms
        if wait_ms >= THROTTLED_SHOWN_MS:
            say(f"throttled: over a quota, the next records wait up to {wait_ms / 1000:.1f} s", err=True)

    def fail(self, which: str, count: int, why: str, remedy: str) -> None:
        self.failed += count
        if self.errors_shown == ERRORS_SHOWN:
            self.failed_unshown += count
            return
        self.errors_shown += 1
        say(f"error: {which}: {why}", err=True)
        if remedy:
            say(f"remedy: {remedy}", err=True)


def _read_key(_ctx: click.Context, _param: click.Parameter, value: str | None) -> bytes | None:
    return None if value is None else os.fsencode(value)


def _read_headers(_ctx: click.Context, _param: click.Parameter, values: Sequence[str]) -> Headers:
    try:
        return tuple(parse_header(os.fsencode(each)) for each in values)
    except ValueError as error:
        raise WrongUsageError(str(error), remedy="write -H NAME=VALUE") from None


@click.command()
@click.argument("topic", type=TOPIC)
@click.option(
    "--file",
    "path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Read this file instead of stdin.",
)
@click.option(
    *("-f", "--format", "text"),
    metavar="FORMAT",
    help=f"Format of the input; the default '{VALUE_LINES}' makes each line a value.",
)
@click.option("-k", "--key", callback=_read_key, help="Key of all records.")
@click.option(
    *("-H", "--header", "headers"),
    multiple=True,
    callback=_read_headers,
    metavar="NAME=VALUE",
    help="Header of all records. Repeatable.",
)
@click.option("-p", "--partition", type=click.IntRange(min=0), help="Write to this partition, whatever the keys.")
@click.option(
    "-Z", "--tombstone", is_flag=True, help="Write empty values as null; with only --key: write one tombstone."
)
@click.option(
    *("-z", "--compression"),
    type=click.Choice([codec.name.lower() for codec in Codec]),
    default="none",
    show_default=True,
    help="Compression of the batches.",
)
@click.option(
    "--acks",
    type=click.Choice(["all", "1", "0"]),
    default="all",
    show_default=True,
    help="all: retry, and store each record exactly once. 1: do not retry. 0: do not wait for answers.",
)
@click.option(
    "--keep-going", is_flag=True, help="After a failed record write the later ones of its partition all the same."
)
@click.option("-v", "--verbose", is_flag=True, help="Print partition and offset of each record.")
@agent_options
@json_option
def produce(
    topic: str,
    path: Path | None,
    text: str | None,
    key: bytes | None,
    headers: Headers,
    partition: int | None,
    tombstone: bool,
    compression: str,
    acks: str,
    keep_going: bool,
    verbose: bool,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Write records to TOPIC, from the lines of stdin or of --file.

    \b
    Fields of --format:
      %k key  %v value  %h headers (a=1,b=2)  %p partition  %T timestamp in ms
      %k{hex} %v{base64} for bytes; \\n \\t \\xHH; %% is a percent sign

    The text after the last field ends a record; without such text a newline does.

    A key decides the partition, as in Java's clients. Records without a key fill one partition after the other.

    Exit code 1 if a record failed; the error names it. Later records of its partition are not written, unless
    --keep-going; a line that cannot be read belongs to no partition and stops none. The first Ctrl-C ends the input and
    gives the records in flight 4 s, the second ends at once; both report what was not written.

    \b
    Examples:
      echo hello | siltstone produce greetings
      siltstone produce users --format '%k\\t%v\\n' --file users.tsv -z zstd
      printf 'alice:42\\n' | siltstone produce users -f '%k:%v' -H source=cli -v
      siltstone produce users --key alice --tombstone
    """
    with as_usage():
        reader = RecordReader(parse_format(VALUE_LINES if text is None else text), key=key, empty_is_null=tombstone)
    only_one = tombstone and key is not None and text is None and path is None
    if not only_one and path is None and sys.stdin.isatty():
        say("each line is a record; Ctrl-D ends the input", err=True)
    options = ProduceOptions(
        acks=-1 if acks == "all" else int(acks),
        codec=Codec[compression.upper()],
        keep_going=keep_going,
        partition=partition,
        headers=headers,
    )
    tally = Tally(topic=topic, verbose=verbose and not as_json)
    with _opened(path, [InputRecord(1, key, None)] if only_one else reader) as source:
        try:
            stopped = asyncio.run(_produce(bootstrap, given_agents(), topic, options, source, tally))
        except SiltstoneError:
            if tally.written:  # say what was stored before the error
                print_tally(tally, as_json=as_json)
            raise
    print_tally(tally, as_json=as_json)
    if stopped and not only_one:
        say(f"stopped: the input after record {tally.given} was not written", err=True)
    if tally.failed:
        sys.exit(1)
    if stopped and not sys.stdin.isatty():
        sys.exit(INTERRUPTED)


@dataclass(frozen=True)
class RecordInput:
    """The records to write: `stream`, split by `reader`, or the records in `given`."""

    stream: BinaryIO | None
    reader: RecordReader | None
    given: Sequence[InputRecord] = ()


@contextlib.contextmanager
def _opened(path: Path | None, what: RecordReader | Sequence[InputRecord]) -> Generator[RecordInput]:
    if not isinstance(what, RecordReader):
        yield RecordInput(None, None, what)
    elif path is None:
        yield RecordInput(sys.stdin.buffer, what)
    else:
        with path.open("rb") as stream:
            yield RecordInput(stream, what)


async def _produce(
    bootstrap: str, hints: HintOptions, topic: str, options: ProduceOptions, source: RecordInput, tally: Tally
) -> bool:
    """Write all records. True when a signal ended the input: records in flight are written all the same, if the agents
    answer within STOP_MS and no second signal comes."""
    clock = SystemClock()
    stopping = asyncio.Event()
    async with RetryingClient(bootstrap, clock, told=lambda line: say(line, err=True)) as client:

        async def count(inner: KafkaClient) -> int:
            async with name_hints(inner, topic, hints):
                return len((await inner.topic(topic)).partitions)

        partitions = await client.run(count)
        writer = TopicWriter(
            client,
            topic,
            partitions,
            replace(options, first_partition=int(SystemIds().jitter() * partitions)),
            clock,
            WriteResults(stored=tally.stored, refused=tally.refused, throttled=tally.throttled),
        )
        again, over = asyncio.Event(), asyncio.Event()

        async def stop() -> None:
            await stopping.wait()
            if writer.in_flight:
                say(f"stopping, {plural(writer.in_flight, 'record')} in flight; again to quit", err=True)
            await unless(again, clock.sleep_ms(STOP_MS))
            over.set()

        watching = asyncio.create_task(stop())
        with stop_signals(stopping, again), _progress(tally, clock) as show:
            if source.stream is None or source.reader is None:
                await unless(over, writer.write(source.given))
            else:
                async for records in _gathered(source.stream, source.reader, tally, stopping, partitions):
                    await unless(over, writer.write(records))
                    show()
        watching.cancel()
    return stopping.is_set()


async def _gathered(
    stream: BinaryIO, reader: RecordReader, tally: Tally, stopping: asyncio.Event, partitions: int
) -> AsyncGenerator[Sequence[InputRecord]]:
    """The records that have arrived since the last time, at most a batch for each partition; ends with the input."""
    bytes_max = min(partitions * BATCH_BYTES, WRITE_BYTES_MAX)
    chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue(CHUNKS_WAITING_MAX)
    _read_in_thread(stream, chunks, asyncio.get_running_loop())
    ended = False
    while not ended and not stopping.is_set():
        chunk = await unless(stopping, chunks.get())
        gathered: list[InputRecord] = []
        gathered_bytes = 0
        while True:
            if isinstance(chunk, OSError):
                raise chunk
            ended = not chunk
            if chunk is None:
                break  # a signal: the rest of an unfinished record is dropped
            for each in reader.feed(chunk) if chunk else reader.finish():
                if isinstance(each, UnreadRecord):
                    tally.unread(each)
                else:
                    tally.given = each.number
                    gathered.append(each)
                    gathered_bytes += input_bytes(each)
            # Do not wait for a full batch: records from a slow pipe are written as they arrive.
            if ended or gathered_bytes >= bytes_max or chunks.empty():
                break
            chunk = chunks.get_nowait()
        if gathered:
            yield gathered


def _read_in_thread(stream: BinaryIO, chunks: asyncio.Queue[bytes | OSError], loop: asyncio.AbstractEventLoop) -> None:
    """Put everything that is read from `stream` into the queue, and b"" at its end.

    The thread is a daemon, because a read may never return and the process must still be able to end. It reads past the
    buffer of the stream, because the interpreter, when it ends, would find the lock of that buffer taken.
    """
    read = cast("Callable[[int], bytes | None]", getattr(stream, "raw", stream).read)

    def run() -> None:
        with contextlib.suppress(
            RuntimeError, concurrent.futures.CancelledError
        ):  # the event loop has ended: nothing takes from the queue any more
            chunk: bytes | OSError = b"."
            while chunk and not isinstance(chunk, OSError):
                try:
                    while (read_now := read(READ_BYTES)) is None:
                        select.select([stream], [], [])  # another process made the pipe non-blocking
                    chunk = read_now
                except OSError as error:
                    chunk = error
                asyncio.run_coroutine_threadsafe(chunks.put(chunk), loop).result()

    threading.Thread(target=run, name="input", daemon=True).start()


@contextlib.contextmanager
def _progress(tally: Tally, clock: Clock) -> Generator[Callable[[], None]]:
    """Show the progress in one line of a terminal, unless the records themselves are shown or typed there."""
    if not sys.stderr.isatty() or sys.stdin.isatty() or tally.verbose:
        yield lambda: None
        return
    started_ms = clock.monotonic_ms()
    with console(stderr=True).status("writing") as status:

        def show() -> None:
            seconds = max(0.001, (clock.monotonic_ms() - started_ms) / 1000)
            rate = f"{tally.written / seconds:,.0f} records/s"
            status.update(f"{plural(tally.written, 'record')}, {size_text(tally.written_bytes)}, {rate}")

        yield show


def print_tally(tally: Tally, *, as_json: bool) -> None:
    ranges = sorted(tally.ranges.items())
    if as_json:
        partitions = [
            {"partition": partition, "first_offset": first, "last_offset": last, "records": count}
            for partition, (first, last, count) in ranges
        ]
        numbers = {"written": tally.written, "failed": tally.failed}
        throttled_s = round(tally.throttled_ms / 1000, 3)
        print_json({"topic": tally.topic, **numbers, "throttled_seconds": throttled_s, "partitions": partitions})
        return
    if tally.failed_unshown:
        say(f"and {plural(tally.failed_unshown, 'more record')} failed", err=True)
    where = [
        f"{partition}@{first}" + (f"..{last}" if last > first else "") if first >= 0 else f"{partition}"
        for partition, (first, last, _) in ranges
    ]
    more = f" and {len(where) - PARTITIONS_SHOWN} more partitions" if len(where) > PARTITIONS_SHOWN else ""
    places = f": {', '.join(where[:PARTITIONS_SHOWN])}{more}" if where else ""
    failed = f"; {plural(tally.failed, 'record')} failed" if tally.failed else ""
    if tally.throttled_ms:
        seconds = tally.throttled_ms / 1000
        say(f"throttled for up to {seconds:.1f} s in all; `siltstone quotas list` shows quotas", err=True)
    say(f"wrote {plural(tally.written, 'record')} to {tally.topic}{places}{failed}", err=tally.verbose)
