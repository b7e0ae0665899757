"""The transactions of a run: which runs have them, their topics and clients, and what is changed about the product.

Whatever is drawn for this comes from a random stream of its own, so that runs without transactions stay what they are.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from agents.read.leveled import Window
from agents.read.plan import KnownExtent, PartitionPlan
from agents.tail.follower import Follower
from agents.tail.log_index import LogIndex
from agents.tail.transactions import NO_END, Aborted, aborted_in
from agents.transactions import timeouts
from metadata.transactions.contract import PRODUCER_EPOCH_MAX, ProducerInitialised
from metadata.transactions.rows import TxnRowKind, decode_txn_rows
from runtime.settings.checks import GRACE_SHARE_OF_CACHES
from tests.simulation.access.access import has_acls
from tests.simulation.book import TopicPartition
from tests.simulation.checks import Truth
from tests.simulation.clients import Client
from tests.simulation.consumers import Consumer
from tests.simulation.loop import Process
from tests.simulation.transactions.checks import (
    View,
    check_merged,
    check_tables,
    check_transactions,
    check_views,
    outcomes_of,
    stored_of,
)
from tests.simulation.transactions.consumers import CommittedReader
from tests.simulation.transactions.groups import check_offsets
from tests.simulation.transactions.ledger import Ledger, Transaction
from tests.simulation.transactions.merges import COMPACTED, CONFIGS, GRACES_MS, Merger
from tests.simulation.transactions.orders import Order
from tests.simulation.transactions.producers import TransactionalProducer, Trimmer, Ways
from tests.simulation.transactions.services import SimulatedGroups, SimulatedTransactions
from tests.simulation.transactions.store import TransactionStore

if TYPE_CHECKING:
    from tests.simulation.services import SimulatedMetadata
    from tests.simulation.world import World

LEDGER, TRIMMED = "ledger", "trimmed"
"""A topic of transactions, and one of which records are deleted from the start."""
SHARE = 0.25
"""The share of runs with transactions, of those without ACLs."""
MERGED_SHARE = 0.5
LONG_MS = 120_000
"""A timeout that no transaction of a run comes to."""
ABANDONED_MS = 150
"""Every agent aborts what is overdue for so long."""


SWEEP_MS = 200.0


def _stream(seed: int) -> random.Random:
    return random.Random(f"{seed} transactions")


def _merges(seed: int) -> random.Random:
    """A stream of its own: runs without merges stay what they are."""
    return random.Random(f"{seed} merges")


def has_transactions(seed: int) -> bool:
    return _stream(seed).random() < SHARE and not has_acls(seed)


class Transactions:
    """The transactions of one run."""

    def __init__(self, world: World) -> None:
        self.rng = _stream(world.seed)
        self.rng.random()  # drawn by `has_transactions`
        self.ledger = Ledger()
        self.views: list[View] = []
        """What readers of committed records were shown."""
        self.marked_ms: dict[tuple[TopicPartition | None, int], float] = {}
        """When the store got a marker, by its place and offset."""
        self.stable: dict[TopicPartition, int] = {}
        """The highest last stable offset that anybody was told."""
        self.places: list[TopicPartition] = [(LEDGER, number) for number in range(self.rng.choice((1, 2, 2)))]
        self.has_trimmed = self.rng.random() < 0.4
        if self.has_trimmed:
            self.places.append((TRIMMED, 0))
        self.producers: list[TransactionalProducer] = []
        self._world = world
        self._store = TransactionStore(world, self)
        self._ages = self.rng.random() < 0.5
        """Producers come to their last epoch."""
        self._merges = _merges(world.seed)
        self.has_merges = self._merges.random() < MERGED_SHARE
        self.merger: Merger | None = None
        if self.has_merges:
            self.places.append((COMPACTED, 0))
        self.grace_ms = 0
        """How long a merged file lives on; 0: there are no merges."""

    def settings(self, *, tail_poll_ms: int) -> dict[str, int]:
        """Of all agents."""
        settings = {"group_initial_rebalance_delay_ms": 0}
        if self.has_merges:
            self.grace_ms = max(self._merges.choice(GRACES_MS), tail_poll_ms * GRACE_SHARE_OF_CACHES)
            settings["gc_grace_ms"] = self.grace_ms
        return settings

    def services(self, metadata: SimulatedMetadata) -> None:
        """Give an agent the calls of transactions and groups."""
        metadata.own_transactions = SimulatedTransactions(metadata, self._store)
        metadata.own_groups = SimulatedGroups(metadata)
        metadata.delay_of_commit = self._store.delay_of_commit

    async def begin(self, churned: str, *, has_churned: bool) -> tuple[list[Client], list[Consumer | CommittedReader]]:
        """Once the topics that stay are made, before any agent starts. Returns the clients, and those that read to the
        end."""
        world, rng = self._world, self.rng
        await world.server.agents.create_topic(
            LEDGER, partitions=sum(topic == LEDGER for topic, _ in self.places), configs={}
        )
        if self.has_trimmed:
            await world.server.agents.create_topic(TRIMMED, partitions=1, configs={})
        if self.has_merges:
            await world.server.agents.create_topic(COMPACTED, partitions=1, configs=CONFIGS)
            self.merger = Merger(world, self._merges, grace_ms=self.grace_ms)
            world.start(self.merger.process, self.merger.run())
        self._store.watch()
        written = [*self.places, *([(churned, 0)] if has_churned else [])]
        hasty = rng.random() < 0.4
        for number in range(rng.choice((1, 2, 2, 3))):
            has_twin = rng.random() < 0.35
            protocol = rng.choice((1, 1, 1, 2, 2))
            is_short = rng.random() < (0.8 if hasty else 0.15)
            ways = Ways(
                transactional_id=f"id{number}",
                protocol=protocol,
                places=written,
                timeout_ms=rng.randint(150, 1_200) if is_short else LONG_MS,
                is_alone=not has_twin and not is_short,
            )
            self.producers += [
                TransactionalProducer(world, self, f"tx{number}{twin}", ways, rng.randint(3, 7))
                for twin in (("a", "b") if has_twin else ("",))
            ]
        clients: list[Client] = list(self.producers)
        if self.has_trimmed:
            clients.append(Trimmer(world, self, (TRIMMED, 0)))
        readers: list[Consumer | CommittedReader] = [
            CommittedReader(world, self, f"committed{number}", self.places) for number in range(rng.choice((1, 2)))
        ]
        stays = [place for place in self.places if place[0] == LEDGER]
        readers.append(Consumer(world, "uncommitted", stays, rng=rng))
        return clients, readers

    def auditors(self) -> list[CommittedReader]:
        """One at each agent."""
        return [
            CommittedReader(self._world, self, f"audit {seat.address}", self.places, address=seat.address)
            for seat in self._world.seats
        ]

    def check(self, truth: Truth) -> list[str]:
        """At the end of the run, when every client has gone."""
        server = self._world.server
        starts = {
            place: partition.log_start_offset
            for id_, partition in server.database.partitions.items()
            if (place := self.place_of(id_)) is not None
        }
        wrong: list[str] = []
        present = truth
        if self.merger is not None:
            truth, wrong = self.merger.whole(truth, starts)
        found = stored_of(truth, starts)
        outcomes = outcomes_of(self.ledger, found)
        violations = [
            *wrong,
            *check_merged(present, found),
            *check_tables(server),
            *check_transactions(self.ledger, found, self._world.deleted_ms),
            *check_views(self.views, found, self.marked_ms),
        ]
        for producer in self.producers:
            producer.offsets.replay({each: _known(each, outcomes[each]) for each in producer.own})
            violations += check_offsets(producer)
        return violations

    # ---- for the store

    def place_of(self, partition_id: int) -> TopicPartition | None:
        for topic in self._world.server.database.topics.values():
            if partition_id in topic.partition_ids:
                return topic.name, topic.partition_ids.index(partition_id)
        return None

    def is_draining(self, process: Process) -> bool:
        return any(seat.is_draining(process) for seat in self._world.seats)

    def age(self, transactional_id: str, made: ProducerInitialised) -> ProducerInitialised:
        """A new producer, which is old already in some runs."""
        if not self._ages or made.error:
            return made
        epoch = PRODUCER_EPOCH_MAX - self.rng.randint(0, 3)
        by_id = self._world.server.database.transactions.by_id
        by_id[transactional_id] = replace(by_id[transactional_id], producer_epoch=epoch)
        return replace(made, producer_epoch=epoch)

    # ---- the product

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Count the orders that only a follower sees; and shorter times than the product's."""
        counts, tables = self._world.faults.counts, self._world.server.database
        add_file, saw_own = LogIndex.add_file, Follower.saw_own
        add_aborted, extent_at = PartitionPlan.add_aborted, Window.extent_at
        is_own = False

        def adding(index: LogIndex, *args: Any, **named: Any) -> list[int]:
            waits = _waiting(index)
            counts[Order.DEAD_FILE_BEGINS] += not named.get("live", True) and _begins(named["txn_rows"])
            moved = add_file(index, *args, **named)
            if is_own and _waiting(index) > waits:
                counts[Order.OWN_END_EARLY] += 1
            return moved

        def own(follower: Follower, file: Any) -> None:
            nonlocal is_own
            is_own = bool(file.inline)
            try:
                saw_own(follower, file)
            finally:
                is_own = False

        def listing(plan: PartitionPlan, entries: Sequence[Aborted], offset: int, end: int) -> None:
            before = len(plan.aborted_below(NO_END))
            add_aborted(plan, entries, offset, end)
            new = len(plan.aborted_below(NO_END)) - before
            counts[Order.LISTED_TWICE] += bool(before) and new < sum(1 for _ in aborted_in(entries, offset, end))

        def found(window: Window, offset: int, aborted_from: int | None) -> KnownExtent | None:
            known = extent_at(window, offset, aborted_from)
            if known is not None and known.aborted and tables.extents[known.extent.extent_id].dead_ms is not None:
                at = known.extent.partition_id
                listed = {each.last_offset for each in tables.transactions.aborted if each.partition_id == at}
                counts[Order.OLD_LIST] += any(each.last_offset not in listed for each in known.aborted)
            return known

        with ExitStack() as stack:
            stack.enter_context(patch.object(PartitionPlan, "add_aborted", listing))
            stack.enter_context(patch.object(Window, "extent_at", found))
            stack.enter_context(patch.object(LogIndex, "add_file", adding))
            stack.enter_context(patch.object(Follower, "saw_own", own))
            stack.enter_context(patch.object(timeouts, "ABANDONED_MS", ABANDONED_MS))
            stack.enter_context(patch.object(timeouts, "SWEEP_MS", SWEEP_MS))
            yield


def _known(transaction: Transaction, outcomes: set[bool]) -> bool | None:
    """Whether it is committed, by what its client was told or by its records."""
    if transaction.told is not None:
        return transaction.told
    if not transaction.asked_to_commit:
        return False
    return next(iter(outcomes)) if len(outcomes) == 1 else None


def _begins(txn_rows: bytes) -> bool:
    return any(row.kind is TxnRowKind.BEGIN for row in decode_txn_rows(txn_rows))


def _waiting(index: LogIndex) -> int:
    """Extents with transactions that wait for an earlier commit."""
    logs = (index.partition(each) for each in range(1, 12))
    return sum(len(log.transactions.waiting) for log in logs if log is not None and log.transactions is not None)
