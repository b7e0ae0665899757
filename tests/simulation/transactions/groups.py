"""Offsets of groups that move with a transaction.

Each producer commits offsets for a group of its own, without members, and sometimes for a group of a few moments with
two members: the second one joins while the offsets of the first are on their way, and reads stable offsets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from metadata.groups.contract import OffsetPlace
from tests.simulation.book import TopicPartition
from tests.simulation.faults import Fault
from tests.simulation.transactions.ledger import UNKNOWN, Transaction
from tests.simulation.transactions.orders import Order
from tests.simulation.transactions.requests import GROUP, RETRIABLE, TRANSACTION
from wire.error_codes import ErrorCode
from wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic, OffsetFetchResponse
from wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)

if TYPE_CHECKING:
    from tests.simulation.transactions.producers import TransactionalProducer

PLACE: TopicPartition = ("ledger", 0)
"""Of all offsets."""
PAIR = "pair-"
"""Begins the names of groups with two members."""
UNSTABLE = -2
SESSION_MS = 6_000
_REFUSED = (
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.REBALANCE_IN_PROGRESS,
)


class GroupOffsets:
    """The offsets that one producer commits."""

    def __init__(self, client: TransactionalProducer) -> None:
        self._client = client
        self.group_id = f"group-{client.name}"
        self.possible: set[int] = {UNKNOWN}
        """What the group's offset may be now."""
        self.loose: set[int] = set()
        """Offsets whose requests were lost: they may come at any time."""
        self._pairs = 0
        self._read: int | None = None
        """What a new generation read of a group with members."""

    async def commit(self, transaction: Transaction) -> None:
        """Raises TransactionEndedError."""
        if self._client.rng.random() < 0.35:
            await self._commit_amid_rebalance(transaction)
            return
        await self._add(transaction, self.group_id)
        transaction.group_id, transaction.value = self.group_id, self._client.ledger.new_value()
        lost, copies = self._client.lost, self._client.copies
        answer = await self._client.ask(
            GROUP,
            self.group_id,
            self._request(transaction, self.group_id),
            TxnOffsetCommitResponse,
            _error_of_offsets,
            copies=self._client.ways.protocol == 2,
        )
        if lost != self._client.lost and self._client.ways.protocol == 1:
            self.loose.add(transaction.value)
        transaction.is_sent_again = (lost, copies) != (self._client.lost, self._client.copies)
        self._judge(transaction, answer, ())
        if self._client.rng.random() < 0.5:
            await self._commit_plainly(transaction)
        await self._expect_unstable(transaction)

    async def ended(self, transaction: Transaction) -> None:
        """It ended as its client asked."""
        committed = bool(transaction.told) and transaction.is_held
        if transaction.group_id != self.group_id:
            read, self._read = self._read, None
            if committed and read not in (None, UNSTABLE, transaction.value) and not transaction.is_confused:
                self._client.world.violation(
                    f"{self._client.name}: a new generation read offset {read}, though {transaction.name}"
                    f" had committed {transaction.value} before, or was about to"
                )
            return
        if committed:
            self.possible = self._after(transaction)
        if transaction.group_id and self._client.rng.random() < 0.6:
            await self._check()

    def unsure(self, transaction: Transaction) -> None:
        """Its client does not know how it ended."""
        self._read = None
        if transaction.is_held and transaction.group_id == self.group_id:
            self.possible |= self._after(transaction)

    def replay(self, outcomes: Mapping[Transaction, bool | None]) -> None:
        """Once it is known of every transaction, as far as its records tell, whether it is committed."""
        self.possible = {UNKNOWN}
        for transaction, outcome in outcomes.items():
            if transaction.plain_value != UNKNOWN:
                self.possible = {transaction.plain_value}
            if transaction.is_held and transaction.group_id == self.group_id and outcome is not False:
                after = self._after(transaction)
                self.possible = after if outcome else self.possible | after

    def allows(self, offset: int) -> bool:
        return offset in self.possible or offset in self.loose

    # ---- inner

    def _after(self, transaction: Transaction) -> set[int]:
        """Once it is committed: a plain commit that came later stays."""
        if transaction.plain_value == UNKNOWN:
            return {transaction.value}
        # A second request of the transaction may have come behind the plain one.
        return {transaction.plain_value, *([transaction.value] if transaction.is_sent_again else [])}

    async def _add(self, transaction: Transaction, group_id: str) -> None:
        client = self._client
        if client.ways.protocol == 2:
            return
        request = AddOffsetsToTxnRequest(
            transactional_id=client.ways.transactional_id,
            producer_id=transaction.producer_id,
            producer_epoch=transaction.epoch,
            group_id=group_id,
        )
        answer = await client.ask(
            TRANSACTION, client.ways.transactional_id, request, AddOffsetsToTxnResponse, lambda it: it.error_code
        )
        if answer.error_code:
            client.judge_error(transaction, ErrorCode(answer.error_code), "added a group", [])

    def _request(
        self, transaction: Transaction, group_id: str, member_id: str = "", generation: int = -1
    ) -> TxnOffsetCommitRequest:
        topic, partition = PLACE
        part = TxnOffsetCommitRequestPartition(
            partition_index=partition, committed_offset=transaction.value, committed_metadata=""
        )
        return TxnOffsetCommitRequest(
            transactional_id=self._client.ways.transactional_id,
            group_id=group_id,
            producer_id=transaction.producer_id,
            producer_epoch=transaction.epoch,
            generation_id=generation,
            member_id=member_id,
            topics=[TxnOffsetCommitRequestTopic(name=topic, partitions=[part])],
        )

    def _judge(self, transaction: Transaction, answer: TxnOffsetCommitResponse, refused: tuple[ErrorCode, ...]) -> None:
        """Raises TransactionEndedError."""
        from tests.simulation.transactions.producers import TransactionEndedError

        error = ErrorCode(_error_of_offsets(answer))
        self._client.facts("is told of offsets", txn=transaction.name, offset=transaction.value, error=error.name)
        if error in refused:
            raise TransactionEndedError(error.name)
        if error is not ErrorCode.NONE:
            self._client.judge_error(transaction, error, "committed offsets", [])
        transaction.is_held = True

    async def _commit_plainly(self, transaction: Transaction) -> None:
        """Raises nothing: it is not part of the transaction."""
        client, (topic, partition) = self._client, PLACE
        value, lost = client.ledger.new_value(), client.lost
        part = OffsetCommitRequestPartition(partition_index=partition, committed_offset=value, committed_metadata="")
        request = OffsetCommitRequest(
            group_id=self.group_id, topics=[OffsetCommitRequestTopic(name=topic, partitions=[part])]
        )
        answer = await client.ask(
            GROUP, self.group_id, request, OffsetCommitResponse, lambda it: it.topics[0].partitions[0].error_code
        )
        error = ErrorCode(answer.topics[0].partitions[0].error_code)
        client.facts("is told of a plain offset", offset=value, error=error.name)
        if error is not ErrorCode.NONE:
            client.world.violation(f"{client.name} committed an offset and got {error.name}")
        if lost != client.lost:
            self.loose.add(value)
        transaction.plain_value = value
        self.possible = {value}

    # ---- reading

    async def _fetch(self, group_id: str) -> int:
        """The stable offset; UNSTABLE while a transaction holds one."""
        answer = await self._client.ask(
            GROUP,
            group_id,
            _fetch_request(group_id),
            OffsetFetchResponse,
            lambda it: it.error_code or _retriable_part(it),
        )
        return self._found(group_id, answer)

    async def _fetch_as_another(self, group_id: str) -> int | None:
        """The same by a line of its own: an answer does not wait for those of the first member. None: no answer."""
        answer = await self._client.try_alone(GROUP, group_id, _fetch_request(group_id), OffsetFetchResponse)
        if answer is None or ErrorCode(answer.error_code or _retriable_part(answer)) in RETRIABLE:
            return None
        return self._found(group_id, answer)

    def _found(self, group_id: str, answer: OffsetFetchResponse) -> int:
        part = answer.topics[0].partitions[0]
        error = ErrorCode(answer.error_code or part.error_code)
        self._client.facts("reads the offset", group=group_id, error=error.name, offset=part.committed_offset)
        if error is ErrorCode.UNSTABLE_OFFSET_COMMIT:
            return UNSTABLE
        if error is not ErrorCode.NONE:
            self._client.world.violation(f"{self._client.name} read the offset of {group_id} and got {error.name}")
        return part.committed_offset

    async def _expect_unstable(self, transaction: Transaction) -> None:
        client = self._client
        found = await self._fetch(self.group_id)
        if found != UNSTABLE and client.ways.is_alone and not transaction.is_confused and not client.has_confused():
            client.world.violation(
                f"{client.name} read offset {found} of {self.group_id} as stable, though {transaction.name} holds one"
            )

    async def _check(self) -> None:
        client = self._client
        found = await self._fetch(self.group_id)
        if found == UNSTABLE and (client.has_confused() or not client.ways.is_alone or self.loose):
            return
        if not self.allows(found) and not client.has_confused():
            client.world.violation(
                f"{client.name} read offset {found} of {self.group_id}, which can only be {sorted(self.possible)}"
            )

    # ---- two members

    async def _commit_amid_rebalance(self, transaction: Transaction) -> None:
        """Raises TransactionEndedError."""
        from tests.simulation.transactions.producers import TransactionEndedError

        client = self._client
        self._pairs += 1
        group_id = f"{PAIR}{client.name}-{self._pairs}"
        await self._add(transaction, group_id)
        first = await self._join(group_id, "")
        if first is None or not await self._sync(group_id, first):
            raise TransactionEndedError("no group")
        transaction.group_id, transaction.value = group_id, client.ledger.new_value()
        request = self._request(transaction, group_id, first.member_id, first.generation_id)
        holding = client.process.spawn(client.try_once(GROUP, group_id, request, TxnOffsetCommitResponse), client.name)
        await client.pause(0, 80)
        joined = await asyncio.gather(self._join(group_id, ""), self._join(group_id, first.member_id))
        members = [each for each in joined if each is not None]
        are_synced = await asyncio.gather(*(self._sync(group_id, each) for each in members))
        if len(members) == 2 and all(are_synced):
            self._read = await self._fetch_as_another(group_id)
            client.world.faults.counts[Order.UNSTABLE_OFFSETS] += self._read == UNSTABLE
        answer = await holding
        if answer is None or ErrorCode(_error_of_offsets(answer)) in RETRIABLE:
            # An older generation, by now.
            answer = await client.ask(GROUP, group_id, request, TxnOffsetCommitResponse, _error_of_offsets)
        elif client.rng.random() < 0.5 or client.world.faults.strikes(Fault.DUPLICATED):
            again = await client.try_once(GROUP, group_id, request, TxnOffsetCommitResponse)
            if again is not None and len(members) == 2 and all(are_synced):
                error = ErrorCode(_error_of_offsets(again))
                client.world.faults.counts[Order.ZOMBIE_OFFSETS] += error is ErrorCode.ILLEGAL_GENERATION
                if error is ErrorCode.NONE:
                    client.world.violation(f"{client.name} committed offsets in an older generation of {group_id}")
        self._judge(transaction, answer, _REFUSED)

    async def _join(self, group_id: str, member_id: str) -> JoinGroupResponse | None:
        request = JoinGroupRequest(
            group_id=group_id,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=1_500,
            member_id=member_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
        )
        # By a line of its own: the answer waits for the other member.
        answer = await self._client.try_alone(GROUP, group_id, request, JoinGroupResponse)
        return None if answer is None or answer.error_code else answer

    async def _sync(self, group_id: str, joined: JoinGroupResponse) -> bool:
        assignments = [SyncGroupRequestAssignment(member_id=each.member_id, assignment=b"") for each in joined.members]
        request = SyncGroupRequest(
            group_id=group_id,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            assignments=assignments if joined.leader == joined.member_id else [],
        )
        answer = await self._client.try_alone(GROUP, group_id, request, SyncGroupResponse)
        return answer is not None and not answer.error_code


def check_offsets(client: TransactionalProducer) -> list[str]:
    """At the end of the run, after `replay`."""
    database, offsets = client.world.server.database, client.offsets
    group = database.groups.get(offsets.group_id)
    topic = next(each for each in database.topics.values() if each.name == PLACE[0])
    stored = None if group is None else group.offsets.get(OffsetPlace(topic.topic_id, PLACE[1]))
    found = UNKNOWN if stored is None else stored.offset
    if offsets.allows(found) or any(each.is_confused for each in client.own):
        return []
    return [f"{offsets.group_id} has offset {found}, which can only be {sorted(offsets.possible)}"]


def _fetch_request(group_id: str) -> OffsetFetchRequest:
    topic, partition = PLACE
    asked = OffsetFetchRequestTopic(name=topic, partition_indexes=[partition])
    return OffsetFetchRequest(group_id=group_id, topics=[asked], require_stable=True)


def _error_of_offsets(answer: TxnOffsetCommitResponse) -> int:
    return answer.topics[0].partitions[0].error_code


def _retriable_part(answer: OffsetFetchResponse) -> int:
    error = answer.topics[0].partitions[0].error_code
    return 0 if error == int(ErrorCode.UNSTABLE_OFFSET_COMMIT) else error
