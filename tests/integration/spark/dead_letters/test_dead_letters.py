"""Tables of dead letters: every record is in the table or among its dead letters, once, whatever happens in between."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from runtime.text import plural
from spark_jobs.tables.columns.convert import ValueFormat
from spark_jobs.tables.contract import Table
from spark_jobs.tables.errors import RecreatedTopicError, WrongTableError
from spark_jobs.tables.iceberg.place import IcebergPlace
from spark_jobs.tables.objects import Objects
from spark_jobs.tables.parquet_table import ParquetTable
from spark_jobs.tables.tidying.decide import FANOUT
from tests.fixtures.lake import JSON, RAW, Lake
from tests.fixtures.log_lines import LogLines

pytestmark = pytest.mark.timeout(300)
SEEDS = 20


def schema(*names: str) -> ValueFormat:
    """Values with these whole numbers."""
    properties = {name: {"type": "integer"} for name in names}
    return ValueFormat(kind="json", schema_text=json.dumps({"type": "object", "properties": properties}))


NARROW, WIDE = schema("n"), schema("n", "x")
"""With NARROW a value that has an `x` does not fit, unless the table has that column already."""
TEXT_KEYS = ValueFormat(kind="json", keys="text")
PAIRS = [("parquet", "parquet"), ("parquet", "iceberg"), ("iceberg", "parquet"), ("iceberg", "iceberg")]
"""The kinds of the table, and of its dead letters."""


@dataclass(frozen=True)
class Pair:
    """A table and its dead letters, opened again for each run, as new processes do."""

    lake: Lake
    kinds: tuple[str, str]
    topic: str = "t"

    def table(self) -> Table:
        return self._open(self.kinds[0], self.topic)

    def letters(self) -> Table:
        return self._open(self.kinds[1], f"{self.topic}_errors")

    def _open(self, kind: str, name: str) -> Table:
        opened: Callable[[str], Table] = getattr(self.lake, kind)
        return opened(name)

    async def exported(self, values: ValueFormat = JSON, **ask: Any) -> Any:
        return await self.lake.exported(self.topic, self.table(), values, dead_letters=self.letters(), **ask)

    async def held(self) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """Partition and offset of the table's rows, and of the dead letters."""
        return await self._offsets(self.table()), await self._offsets(self.letters())

    async def _offsets(self, table: Table) -> list[tuple[int, int]]:
        if await asyncio.to_thread(table.load) is None:
            return []
        return list(await self.lake.offsets(table))


async def test_a_new_table_of_dead_letters_beside_an_old_table_is_told(lake: Lake, log_lines: LogLines) -> None:
    pair = Pair(lake, ("parquet", "parquet"))
    await lake.client.create_topic("t", partitions=1)
    await lake.send_json("t", 0, {"n": 1})
    event = "a new table of dead letters begins with the next records"
    for told in (0, 0, 1, 1):  # each run tells once: the first two have the same pair of tables
        letters = lake.parquet("mistyped") if told else pair.letters()
        await lake.exported("t", pair.table(), JSON, dead_letters=letters)
        assert sum(line["event"].startswith(event) for line in log_lines.all()) == told
        await lake.send("t", 0, b"{")


async def test_small_files_of_dead_letters_are_merged(lake: Lake) -> None:
    # given a table to which each run adds one dead letter
    pair = Pair(lake, ("parquet", "iceberg"))
    await lake.client.create_topic("t", partitions=1)
    counts: list[int] = []
    for _ in range(FANOUT + 1):
        await lake.send("t", 0, b"{")
        await pair.exported()
        letters = pair.letters()
        await asyncio.to_thread(letters.load)
        counts.append(letters.file_count)
    # then the eighth file makes them one
    assert counts == [*range(1, FANOUT), 1, 2]
    assert await pair.held() == ([], [(0, offset) for offset in range(FANOUT + 1)])


@pytest.mark.parametrize("kinds", PAIRS[1:3])
async def test_records_that_do_not_fit_go_into_their_own_table_and_nowhere_else(
    lake: Lake, kinds: tuple[str, str]
) -> None:
    # given a table whose column n is a number, and then values and keys of wrong kinds
    pair = Pair(lake, kinds)
    await lake.client.create_topic("t", partitions=2)
    await lake.send_json("t", 0, {"n": 1})
    assert (await pair.exported(TEXT_KEYS)).dead_letters == 0
    await lake.send("t", 0, b"{", b'{"n": "word"}', b'{"n": 2, "new": true}', None)
    await lake.send("t", 1, b'{"n": 3}', None, key=b"\xff")
    # when they are exported
    report = await pair.exported(TEXT_KEYS)
    # then the table has those that fit, and nothing of the others
    rows = await lake.rows(pair.table())
    assert [(row["kafka_partition"], row["kafka_offset"], row["n"], row["new"]) for row in rows] == [
        (0, 0, 1, None),
        (0, 3, 2, True),
        (0, 4, None, None),
    ]
    assert (report.rows, report.errors, report.dead_letters) == (2, 0, 4)
    # and the others are dead letters with everything that is needed to send them again
    letters = await lake.rows(pair.letters())
    assert [(each["kafka_partition"], each["kafka_offset"]) for each in letters] == [(0, 1), (0, 2), (1, 0), (1, 1)]
    assert [each["kafka_value"] for each in letters] == [b"{", b'{"n": "word"}', b'{"n": 3}', None]
    assert [each["kafka_key"] for each in letters] == [b"k", b"k", b"\xff", b"\xff"]
    reasons = [each["kafka_error"] for each in letters]
    assert reasons[0].startswith("not JSON") and "n: a string does not fit" in reasons[1]
    assert reasons[2:] == ["the key is not UTF-8 (byte 0)"] * 2
    assert {each["kafka_topic"] for each in letters} == {"t"} and letters[0]["kafka_headers"] == []
    assert all(each["kafka_timestamp"] is not None for each in letters)
    # and a run without new records commits to neither
    before = await asyncio.to_thread(lambda: (pair.letters().load(), pair.table().load()))
    assert (await pair.exported(TEXT_KEYS)).commits == ()
    assert await asyncio.to_thread(lambda: (pair.letters().load(), pair.table().load())) == before


class Killed(BaseException):
    """A stop that is no error: nothing is tidied up after it, as after kill -9."""


class Deaths:
    """Kills a run at its n-th step. A step is a file that is put, or a commit, which has happened or not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left: int | None = None
        """The steps until then; None: nobody dies."""
        for place in (Objects, IcebergPlace):
            monkeypatch.setattr(place, "put", self._dying(place.put))

    def _dying(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def dying(*arguments: Any, **options: Any) -> Any:
            self._count()
            done = step(*arguments, **options)
            self._count()
            return done

        return dying

    def _count(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Killed

    def around(self, table: Table) -> Table:
        table.commit = self._dying(table.commit)  # type: ignore[method-assign]
        return table


async def test_kills_at_every_step_of_one_run(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    deaths = Deaths(monkeypatch)
    for step in range(100):
        # given a topic of which a part is exported, with a field that fits or not
        topic = f"t{step}"
        pair = Pair(lake, PAIRS[step % 2], topic)
        await lake.client.create_topic(topic, partitions=1)
        await lake.send_json(topic, 0, {"n": 0}, {"x": 0})
        await pair.exported(NARROW)
        await lake.send_json(topic, 0, {"n": 1}, {"x": 1}, {"n": 2}, {"x": 2, "n": "no"})
        # when a run that finds more to fit is killed at one step, and one that finds less is the next
        deaths.left = step
        try:
            await asyncio.to_thread(
                lake.run, topic, deaths.around(pair.table()), WIDE, None, deaths.around(pair.letters())
            )
            survived = True
        except Killed:
            survived = False
        deaths.left = None
        await lake.send_json(topic, 0, {"x": 3})
        await pair.exported(NARROW)
        # then each record is in one of the tables, and where it was judged to go
        rows, letters = await pair.held()
        assert sorted([*rows, *letters]) == [(0, number) for number in range(7)], (step, rows, letters)
        assert (0, 1) in letters and (0, 5) in letters, (step, letters)
        if survived:
            assert step > 6, "puts and commits of two tables"
            return
    raise AssertionError("it never came to its end")


@pytest.mark.parametrize("seeds", [range(3), pytest.param(range(3, 3 + SEEDS), marks=pytest.mark.soak)])
async def test_random_runs_that_are_killed_have_every_record_once(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, seeds: range
) -> None:
    deaths = Deaths(monkeypatch)
    killed = 0
    for seed in seeds:
        print("seed", seed)
        chance = random.Random(seed)
        topic = f"t{seed}"
        pair = Pair(lake, PAIRS[0] if seed % 4 else chance.choice(PAIRS[1:]), topic)
        await lake.client.create_topic(topic, partitions=2)
        ends = [0, 0]
        for run in range(5):
            for _ in range(chance.randint(0, 3)):
                rows = [random_value(chance) for _ in range(chance.randint(1, 4))]
                partition = chance.randrange(2)
                await lake.send(topic, partition, *rows)
                ends[partition] += len(rows)
            deaths.left = chance.randint(0, 14) if run < 4 else None
            small = {"slice_bytes": 1, "commit_bytes": 1} if chance.random() < 0.5 else {}
            tables = deaths.around(pair.table()), deaths.around(pair.letters())
            values = chance.choice([NARROW, WIDE])
            try:
                await asyncio.to_thread(lake.run, topic, tables[0], values, None, tables[1], **small)
            except Killed:
                killed += 1
            deaths.left = None
            rows_held, letters = await pair.held()
            assert len({*rows_held, *letters}) == len(rows_held) + len(letters), f"seed {seed}"
        expected = sorted((number, offset) for number in range(2) for offset in range(ends[number]))
        assert sorted([*rows_held, *letters]) == expected, f"seed {seed}"
    assert killed > len(seeds), plural(killed, "kill")


def random_value(chance: random.Random) -> bytes | None:
    return chance.choice([b'{"n": 1}', b'{"n": 2, "x": 3}', b'{"x": "no"}', b"{", None])


@pytest.mark.parametrize("first", [NARROW, WIDE], ids=["the quick one fits less", "the quick one fits more"])
@pytest.mark.parametrize("when", ["before its dead letters", "between the commits"])
async def test_of_two_exports_that_judge_differently_each_record_is_once(
    lake: Lake, first: ValueFormat, when: str
) -> None:
    # given a slow export, and a quick one with other columns that runs in the middle of it
    pair = Pair(lake, PAIRS[0])
    await lake.client.create_topic("t", partitions=1)
    await lake.send_json("t", 0, {"n": 1}, {"x": 2})
    slow, letters = pair.table(), pair.letters()
    waits = slow if when == "between the commits" else letters
    commit, others = waits.commit, list[Any]()

    def late(*arguments: Any, **options: Any) -> str:
        if not others:
            others.append(lake.run("t", pair.table(), first, dead_letters=pair.letters()))
        return commit(*arguments, **options)

    waits.commit = late  # type: ignore[method-assign]
    report = await lake.exported("t", slow, WIDE if first is NARROW else NARROW, dead_letters=letters)
    # then the second to commit is refused, and finds all done, as it was judged first
    assert report.fenced == 1 and report.rows + others[0].rows == len((await pair.held())[0])
    rows, dead = await pair.held()
    assert sorted([*rows, *dead]) == [(0, 0), (0, 1)]
    judge = first if when == "before its dead letters" else WIDE if first is NARROW else NARROW
    assert ((0, 1) in dead) == (judge is NARROW) and report.dead_letters + others[0].dead_letters == len(dead)


async def test_a_record_that_no_longer_fits_is_in_the_table_with_the_reason(lake: Lake) -> None:
    # given an export that had a column for everything and stopped after it had committed its dead letters
    pair = Pair(lake, PAIRS[0])
    await lake.client.create_topic("t", partitions=1)
    await lake.send_json("t", 0, {"n": 1, "x": 2}, {"n": "no"})
    dying = pair.table()

    def die(*_: Any, **__: Any) -> str:
        raise Killed

    dying.commit = die  # type: ignore[method-assign]
    with pytest.raises(Killed):
        await lake.exported("t", dying, WIDE, dead_letters=pair.letters())
    # when another reads the records again, without that column
    report = await pair.exported(NARROW)
    rows = await lake.rows(pair.table())
    assert [(row["n"], row["kafka_value"], row["kafka_error"]) for row in rows] == [
        (1, b'{"n": 1, "x": 2}', "x: no column has this name")
    ]
    assert (report.rows, report.errors, report.dead_letters) == (1, 1, 0)


async def test_tables_of_something_else_are_refused_in_words(lake: Lake) -> None:
    await lake.client.create_topic("t", partitions=1)
    await lake.client.create_topic("u", partitions=1)
    await lake.send("t", 0, b"{")
    await lake.send("u", 0, b"{")
    await Pair(lake, PAIRS[0]).exported()
    for refused, table, letters, ask in (
        ("holds the dead letters of the topic 't'", "t_errors", "x", {}),
        ("is a table of records", "y", "t", {}),
        ("dead letters of the topic t, not u", "u", "t_errors", {"topic": "u"}),
        ("dead letters of --mode log, not latest", "z", "t_errors", {"mode": "latest"}),
        (
            "dead letters of values read as json, not",
            "z",
            "t_errors",
            {"values": TEXT_KEYS},
        ),
    ):
        asked: dict[str, Any] = {"topic": "t", "values": JSON, **ask}
        with pytest.raises(WrongTableError, match=refused):
            await lake.exported(
                asked.pop("topic"),
                lake.parquet(table),
                asked.pop("values"),
                dead_letters=lake.parquet(letters),
                **asked,
            )
    # and those of an earlier topic of that name
    await lake.client.delete_topic("t")
    await lake.client.create_topic("t", partitions=1)
    await lake.send("t", 0, b"{")
    with pytest.raises(RecreatedTopicError, match="offsets of both would be mixed") as found:
        await Pair(lake, PAIRS[0]).exported(recreated=True)
    assert "--dead-letters" in found.value.remedy
    report = await lake.exported("t", lake.parquet(), dead_letters=lake.parquet("new_errors"), recreated=True)
    assert (report.rows, report.dead_letters) == (0, 1)


async def test_raw_values_whose_keys_are_no_text_keep_their_value_in_the_dead_letters(lake: Lake) -> None:
    pair = Pair(lake, PAIRS[0])
    await lake.client.create_topic("t", partitions=1)
    await lake.send("t", 0, b"one")
    await lake.send("t", 0, b"two", key=b"\xff")
    await pair.exported(ValueFormat(kind=RAW.kind, keys="text"))
    assert [row["kafka_value"] for row in await lake.rows(pair.table())] == [b"one"]
    assert [row["kafka_value"] for row in await lake.rows(pair.letters())] == [b"two"]


async def test_a_table_that_begins_again_takes_nothing_that_is_a_dead_letter(lake: Lake) -> None:
    pair = Pair(lake, PAIRS[0])
    await lake.client.create_topic("t", partitions=1)
    await lake.send_json("t", 0, {"n": 1}, {"x": 2})
    await pair.exported(NARROW)
    # when the table is lost and filled again, by a schema that would fit
    report = await lake.exported("t", lake.parquet("again"), WIDE, dead_letters=pair.letters())
    assert (report.rows, report.dead_letters) == (1, 0)
    assert isinstance(lake.parquet("again"), ParquetTable) and await lake.offsets(lake.parquet("again")) == [(0, 0)]
