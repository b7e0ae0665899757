"""Clients of both protocols, agents that disagree about who coordinates, answers that are lost, sweeps: in any order.

What a client was told must be what stands in the log: one marker on each partition of a transaction, COMMIT if it was
told so and ABORT otherwise. Nobody waits for ever, and no transaction stays open.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from agents.transactions.timeouts import TransactionTimeouts
from metadata.contract.errors import MetadataUnavailableError
from metadata.contract.l0_commit import CommitInDoubtError
from metadata.transactions.contract import Entry
from metadata.transactions.rows import TxnRowKind, decode_txn_rows
from runtime.ids import SystemIds
from runtime.runtime import Runtime
from tests.fixtures.coordinators import PARTITIONS_MAX, Fleet, One, Producer, coordinators
from wire.error_codes import ErrorCode

HISTORIES = 60
TRANSACTIONS = 6
ASK_AGAIN = (int(ErrorCode.COORDINATOR_NOT_AVAILABLE), int(ErrorCode.NOT_COORDINATOR))
TRIES_MAX = 2_000
TROUBLED = ("end_transactions", "init_producer", "take_transaction", "add_partitions", "register_marker_writer")

Place: TypeAlias = tuple[int, int, int]
"""Partition, producer id, first offset."""


class History:
    def __init__(self, seed: int, fleet: Fleet, partitions: list[int]) -> None:
        self.chance = random.Random(seed)
        self.fleet, self.partitions = fleet, partitions
        self.told: dict[Place, TxnRowKind] = {}
        self.calm = False
        self.ended: defaultdict[str, int] = defaultdict(int)
        self._sequences: defaultdict[tuple[int, int, int], int] = defaultdict(int)
        for one in fleet.ones:
            for name in TROUBLED:
                one.line.before[name] = one.line.after[name] = self._trouble(name)

    def _trouble(self, name: str) -> Callable[[], Awaitable[None]]:
        kinds = (MetadataUnavailableError, CommitInDoubtError) if name == "end_transactions" else ()

        async def trouble() -> None:
            for _ in range(self.chance.randrange(5)):
                await asyncio.sleep(0)
            if not self.calm and self.chance.random() < 0.1:
                raise self.chance.choice(kinds or (MetadataUnavailableError,))("lost")

        return trouble

    def any_one(self) -> One:
        return self.chance.choice(self.fleet.ones)

    async def nemesis(self) -> None:
        while True:
            await self.fleet.pass_ms(self.chance.choice([0, 0, 100, 5_000]))
            agents = await self.fleet.metadata.agents.live_agents()
            what = self.chance.choice(["part", "part", "meet", "sweep", "forget", "wait"])
            if what == "part":
                for one in self.fleet.ones:
                    one.seat.see(self.chance.sample(list(agents), self.chance.randint(1, len(agents))))
            elif what == "meet":
                await self.fleet.meet()
            elif what == "forget":
                self.any_one().forget()
            elif what == "sweep":
                await self.sweep(self.any_one())
            for _ in range(self.chance.randrange(200)):
                await asyncio.sleep(0)

    async def sweep(self, one: One) -> None:
        runtime = Runtime(clock=self.fleet.clock, ids=SystemIds(1), metrics=one.metrics)
        sweeps = TransactionTimeouts(coordinator=one.coordinator, now_ms=self.fleet.clock.wall_ms, runtime=runtime)
        await sweeps.sweep()

    async def client(self, name: str, version: int) -> None:
        producer: Producer | None = None
        for _ in range(TRANSACTIONS):
            producer = producer or await self._init(name, version)
            places = await self._written(producer)
            commit = self.chance.random() < 0.6
            if places is None or not await self._ended(producer, places, commit=commit):
                producer = None

    async def _init(self, name: str, version: int) -> Producer:
        for _ in range(TRIES_MAX):
            one = self.any_one()
            made = await one.init(name, timeout_ms=self.chance.choice([1_000, 60_000]))
            if made.error == 0:
                return Producer(one, name, made.producer_id, made.producer_epoch, version)
            assert made.error in ASK_AGAIN, made
            await asyncio.sleep(0)
        raise AssertionError("nobody gives the client its producer")

    async def _written(self, producer: Producer) -> list[Place] | None:
        """None: it is fenced."""
        places: list[Place] = []
        for partition in self.chance.sample(self.partitions, self.chance.randint(1, 2)):
            if producer.version < 2 and not await self._added(producer, partition):
                return None
            entry = Entry(producer.name, producer.producer_id, producer.epoch, partition, producer.version >= 2)
            transactions = self.fleet.metadata.transactions
            (entered,) = await transactions.enter([entry], partitions_max=PARTITIONS_MAX)
            await asyncio.sleep(0)
            if entered.error:
                return None
            writer = self.fleet.ones[0].writer
            (result,) = (await writer.commit(self._batch(producer, partition, entered.txn_seq))).results
            if result.error:
                return None
            place = (partition, producer.producer_id, result.base_offset)
            self.told[place] = TxnRowKind.ABORT  # unless it is committed
            places.append(place)
        return places

    def _batch(self, producer: Producer, partition: int, txn_seq: int) -> Any:
        key = (producer.producer_id, producer.epoch, partition)
        number = self._sequences[key]
        self._sequences[key] += 1
        producer.sequence = number
        return producer.batch(partition, txn_seq)

    async def _added(self, producer: Producer, partition: int) -> bool:
        for _ in range(TRIES_MAX):
            producer.at = self.any_one()
            error = await producer.add(partition)
            if error not in ASK_AGAIN:
                return error == 0
            await asyncio.sleep(0)
        raise AssertionError("nobody takes the client's partition")

    async def _ended(self, producer: Producer, places: list[Place], *, commit: bool) -> bool:
        for _ in range(TRIES_MAX):
            if producer.version >= 2 and self.chance.random() < 0.3:
                await self._given_up(producer, commit=commit)
            ended = await producer.end(commit=commit, at=self.any_one())
            if ended.error not in ASK_AGAIN:
                self.ended[f"{commit} {ended.error}"] += 1
                if ended.error == 0 and commit:
                    self.told.update(dict.fromkeys(places, TxnRowKind.COMMIT))
                return ended.error == 0
            await asyncio.sleep(0)
        raise AssertionError("nobody ends the client's transaction")

    async def _given_up(self, producer: Producer, *, commit: bool) -> None:
        """A request that the client does not wait for. One of the first protocol could end its next transaction."""
        copy = Producer(producer.at, producer.name, producer.producer_id, producer.epoch, producer.version)
        lost = asyncio.create_task(copy.end(commit=commit, at=self.any_one()))
        for _ in range(self.chance.randrange(10)):
            await asyncio.sleep(0)
        lost.cancel()
        await asyncio.gather(lost, return_exceptions=True)

    async def heal(self) -> None:
        self.calm = True
        await self.fleet.meet()
        await self.fleet.pass_ms(100_000)
        for one in self.fleet.ones:
            await self.sweep(one)

    def marked(self) -> dict[Place, list[TxnRowKind]]:
        found: dict[Place, list[TxnRowKind]] = {}
        for file in self.fleet.database.files.values():
            for row in decode_txn_rows(file.info.txn_rows):
                if row.kind is not TxnRowKind.BEGIN:
                    found.setdefault((row.partition_id, row.producer_id, row.first_offset), []).append(row.kind)
        return found


async def run(seed: int) -> History:
    async with coordinators(3) as fleet:
        history = History(seed, fleet, await fleet.partitions(3))
        nemesis = asyncio.create_task(history.nemesis())
        clients = [history.client(f"c{number}", 1 + number % 2) for number in range(4)]
        try:
            async with asyncio.timeout(60):
                await asyncio.gather(*clients)
        finally:
            nemesis.cancel()
            await asyncio.gather(nemesis, return_exceptions=True)
        await history.heal()
        assert history.marked() == {place: [kind] for place, kind in history.told.items()}, seed
        for partition in history.partitions:
            stable, end = await fleet.stable(partition)
            assert stable == end, seed
        return history


async def test_what_clients_are_told_stands_in_the_log() -> None:
    outcomes: defaultdict[str, int] = defaultdict(int)
    base = random.randrange(1 << 32)
    for number in range(HISTORIES):
        print(f"seed {base + number}")
        history = await run(base + number)
        for outcome, times in history.ended.items():
            outcomes[outcome] += times
    print(dict(outcomes))
    assert outcomes["True 0"] > HISTORIES
    assert outcomes["False 0"] > HISTORIES
