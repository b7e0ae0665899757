"""Read topics as a member of a consumer group: partitions come and go, and the offsets of read records are committed.

The order: join; look up the committed offsets (without one, start where the caller says); then read. While an open
transaction holds an offset of a partition, the member waits for its end, as consumers of Kafka do. The reader commits
the offsets of records that the caller has taken: about once a second, when the group rebalances, and at the end. It
never commits a record that was not taken. So after a crash, or after the group removed this member between two commits,
some records come twice, to this member or to another, and none is left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing

from runtime.clock import Clock
from runtime.errors import SiltstoneError
from siltstone.kafka.client import KafkaClient
from siltstone.kafka.consuming import Reach, reaches, read
from siltstone.kafka.groups.admin import Committed
from siltstone.kafka.groups.member import HEARTBEAT_MS, GroupMember, as_text
from siltstone.kafka.held_back import StandstillNotes
from siltstone.kafka.offset_spec import OffsetRange, Place
from siltstone.kafka.record_format import OutputRecord
from siltstone.kafka.records import Isolation, TopicPartition
from siltstone.kafka.retrying import RetryingClient

COMMIT_MS = 1_000
"""Time between two commits while records arrive."""
LOOK_MS = 30_000
"""Time between two checks of the leader for new partitions."""
IDLE_MS = 500
"""A member without partitions looks this often whether it must join again."""
FAREWELL_MS = 5_000
"""Time for the last commit, and again for leaving. If both fail, the group removes this member after its session."""


class GroupReader:
    """Reads as one member of a group. `first` is the start of partitions without a committed offset."""

    def __init__(
        self,
        client: RetryingClient,
        member: GroupMember,
        clock: Clock,
        *,
        first: Place,
        to_end: bool,
        told: Callable[[str], None],
        isolation: Isolation = Isolation.READ_COMMITTED,
        notes: StandstillNotes | None = None,
    ) -> None:
        self._client, self._member, self._clock = client, member, clock
        self._group = member.group
        self._first, self._to_end, self._told, self._isolation = first, to_end, told, isolation
        self._notes = notes
        self._taken: dict[TopicPartition, int] = {}
        """Offsets to commit: one past the last record that the caller has taken."""
        self._committed_ms = self._looked_ms = 0.0
        self._is_over = False
        """Whether this generation has ended: the group rebalances, or has removed this member."""

    async def read(self, num: int | None) -> AsyncGenerator[Sequence[OutputRecord]]:
        """The records, a batch at a time, at most `num` in all. A batch counts as taken when the next is asked for.

        With `to_end` reading stops at the ends that this member's partitions had when it got them. Raises KafkaError,
        UnavailableError, DamagedBatchError, ForeignAssignmentError.
        """
        left = num
        try:
            while True:
                partitions = await self._member.join()
                self._told(f"group {self._group.group_id}: this member reads {as_text(partitions)}")
                async with aclosing(self._generation(partitions)) as batches:
                    async for records in batches:
                        given = records if left is None else records[:left]
                        yield given
                        # The caller asked for more, so it has taken these records: only now may they be committed.
                        if given:
                            self._taken[given[-1].topic, given[-1].partition] = given[-1].offset + 1
                        if left is not None:
                            left -= len(given)
                            if not left:
                                return
                if not self._is_over:
                    return
        finally:
            await self._farewell()

    async def _generation(self, partitions: Sequence[TopicPartition]) -> AsyncGenerator[Sequence[OutputRecord]]:
        """Read the partitions of one generation until it is over, or until everything is read."""
        beats = asyncio.create_task(self._beat())
        self._is_over = False
        self._looked_ms = self._clock.monotonic_ms()
        try:
            found = await self._reaches(partitions, beats)
            passed = {place: reach.position for place, reach in found.items()}
            async with aclosing(read(self._client, found, told=self._told, isolation=self._isolation)) as batches:
                async for records in batches:
                    yield records
                    self._pass(found, passed)
                    if self._notes is not None:
                        self._notes.look(found)
                    if await self._must_join(beats):
                        break
                    await self._commit_if_due()
            # A member without partitions comes here at once: the group has more members than partitions.
            while not (self._to_end or await self._must_join(beats)):
                await asyncio.wait({beats}, timeout=IDLE_MS / 1000)
            if self._notes is not None and not self._is_over:
                self._notes.end(found)
            # Commit before joining again: another member may get these partitions and start at the committed offsets.
            if self._is_over:
                await self._commit()
        finally:
            beats.cancel()
            await asyncio.gather(beats, return_exceptions=True)

    def _pass(self, found: Mapping[TopicPartition, Reach], passed: dict[TopicPartition, int]) -> None:
        """Count what lies before the positions as taken: the caller has asked for more, so it has taken all records
        there. Behind the last one may lie markers and aborted records, which a group without lag is past."""
        for place, reach in found.items():
            position = reach.position if reach.until is None else min(reach.position, reach.until)
            if position > passed[place]:
                passed[place] = self._taken[place] = position

    async def _beat(self) -> None:
        """Send heartbeats. Returns when the group rebalances, or does not know this member any more."""
        while True:
            await self._clock.sleep_ms(HEARTBEAT_MS)
            if not await self._member.beat():
                return

    async def _must_join(self, beats: asyncio.Task[None]) -> bool:
        if beats.done():
            beats.result()  # raises the error of a heartbeat, if there was one
            self._is_over = True
        elif self._clock.monotonic_ms() - self._looked_ms >= LOOK_MS:
            self._looked_ms = self._clock.monotonic_ms()
            self._is_over = await self._member.partitions_changed()
        return self._is_over

    async def _stable(
        self, partitions: Sequence[TopicPartition], beats: asyncio.Task[None]
    ) -> Mapping[TopicPartition, Committed] | None:
        """The committed offsets, none of which an open transaction may change; None if the generation is over before
        that. The transaction's time-out bounds the wait."""
        is_told = False
        while True:
            stable = await self._group.stable_offsets(partitions)
            if not stable.pending:
                return stable.committed
            if not is_told:
                held = as_text(sorted(stable.pending))
                self._told(f"group {self._group.group_id}: waiting for the end of a transaction with offsets of {held}")
                is_told = True
            await asyncio.wait({beats}, timeout=IDLE_MS / 1000)
            if await self._must_join(beats):
                return None

    async def _reaches(
        self, partitions: Sequence[TopicPartition], beats: asyncio.Task[None]
    ) -> Mapping[TopicPartition, Reach]:
        """Empty also if the generation is over before its offsets are known."""
        if not partitions:
            return {}

        committed = await self._stable(partitions, beats)
        if committed is None:
            return {}
        places = {place: committed[place].offset for place in partitions if place in committed}

        async def find(inner: KafkaClient) -> Mapping[TopicPartition, Reach]:
            return await reaches(
                inner,
                partitions,
                OffsetRange(self._first),
                places=places,
                to_end=self._to_end,
                told=self._told,
                isolation=self._isolation,
            )

        found = await self._client.run(find)
        # Commit the starting offsets too. Otherwise the next owner of a partition would look up "end" again and miss
        # the records in between, or would print again that a committed offset is gone.
        self._taken |= {place: reach.position for place, reach in found.items() if places.get(place) != reach.position}
        return found

    async def _commit_if_due(self) -> None:
        if self._clock.monotonic_ms() - self._committed_ms >= COMMIT_MS:
            await self._commit()

    async def _commit(self) -> None:
        self._committed_ms = self._clock.monotonic_ms()
        if not self._taken:
            return
        is_committed = await self._member.commit(self._taken)
        self._taken = {}  # only after the commit: if it is cancelled, the last commit repeats it
        if not is_committed:
            self._told(
                f"group {self._group.group_id}: the group went on without this member, so its last offsets are"
                " not committed; records of about the last second may be read again, by this member or by another"
            )

    async def _farewell(self) -> None:
        for what, act in (
            ("the last records are not committed", self._commit),
            ("could not leave", self._member.leave),
        ):
            try:
                async with asyncio.timeout(FAREWELL_MS / 1000):
                    await act()
            except (SiltstoneError, TimeoutError) as error:
                why = error.message if isinstance(error, SiltstoneError) else "its coordinator does not answer"
                self._told(f"group {self._group.group_id}: {what}: {why}")
