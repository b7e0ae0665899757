"""Reading topics as a member of a consumer group: partitions come and go, and what was read is committed.

Order: join; look up where the group left off (else where the caller says); then read, and commit behind what the caller
has taken, about once a second, when the group rebalances, and at the end. What is committed was taken: a crash, or
being thrown out of the group between two commits, makes records come twice, to this member or another, and none is left
out.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing

from runtime.clock import Clock
from runtime.errors import SiltstoneError
from siltstone.kafka.client import KafkaClient
from siltstone.kafka.consuming import Reach, reaches, read
from siltstone.kafka.groups import GroupClient
from siltstone.kafka.member import HEARTBEAT_MS, GroupMember, as_text
from siltstone.kafka.offset_spec import OffsetRange, Place
from siltstone.kafka.record_format import OutputRecord
from siltstone.kafka.records import TopicPartition
from siltstone.kafka.retrying import RetryingClient

COMMIT_MS = 1_000
LOOK_MS = 30_000
"""Between two looks of the leader whether there are more partitions by now."""
IDLE_MS = 500
FAREWELL_MS = 5_000
"""For the last commit, and for leaving. Who is not heard then is thrown out when its session is over."""


class GroupReader:
    """Reads for one group; `first` is where a partition begins for which the group has committed nothing."""

    def __init__(
        self,
        client: RetryingClient,
        group: GroupClient,
        member: GroupMember,
        clock: Clock,
        *,
        first: Place,
        to_end: bool,
        told: Callable[[str], None],
    ) -> None:
        self._client, self._group, self._member, self._clock = client, group, member, clock
        self._first, self._to_end, self._told = first, to_end, told
        self._taken: dict[TopicPartition, int] = {}
        """Offsets to commit: behind the last record that was taken."""
        self._committed_ms = self._looked_ms = 0.0
        self._is_over = False
        """The generation: the group rebalances, or has thrown this member out."""

    async def read(self, num: int | None) -> AsyncGenerator[Sequence[OutputRecord]]:
        """Records, some at a time, at most `num` in all. Those given count as taken when the next are asked for.

        With `to_end` it ends where the partitions that it has then ended when it got them. Raises KafkaError,
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
        """Until it is over, or all is read."""
        beats = asyncio.create_task(self._beat())
        self._is_over = False
        self._looked_ms = self._clock.monotonic_ms()
        try:
            found = await self._reaches(partitions)
            async with aclosing(read(self._client, found, told=self._told)) as batches:
                async for records in batches:
                    yield records
                    if await self._must_join(beats):
                        break
                    await self._commit_now_and_then()
            while not (self._to_end or await self._must_join(beats)):  # there are more members than partitions
                await asyncio.wait({beats}, timeout=IDLE_MS / 1000)
            if self._is_over:
                await self._commit()
        finally:
            beats.cancel()
            await asyncio.gather(beats, return_exceptions=True)

    async def _beat(self) -> None:
        """Ends when the group rebalances, or does not know this member any more."""
        while True:
            await self._clock.sleep_ms(HEARTBEAT_MS)
            if not await self._member.beat():
                return

    async def _must_join(self, beats: asyncio.Task[None]) -> bool:
        if beats.done():
            beats.result()
            self._is_over = True
        elif self._clock.monotonic_ms() - self._looked_ms >= LOOK_MS:
            self._looked_ms = self._clock.monotonic_ms()
            self._is_over = await self._member.has_more_to_share_out()
        return self._is_over

    async def _reaches(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, Reach]:
        if not partitions:
            return {}

        committed = await self._group.committed()
        places = {place: committed[place].offset for place in partitions if place in committed}

        async def find(inner: KafkaClient) -> Mapping[TopicPartition, Reach]:
            return await reaches(
                inner, partitions, OffsetRange(self._first), places=places, to_end=self._to_end, told=self._told
            )

        found = await self._client.run(find)
        # So that whoever has it next does not look for "end" anew, and miss what comes in between; nor is told again
        # that what was committed is gone.
        self._taken |= {place: reach.position for place, reach in found.items() if places.get(place) != reach.position}
        return found

    async def _commit_now_and_then(self) -> None:
        if self._clock.monotonic_ms() - self._committed_ms >= COMMIT_MS:
            await self._commit()

    async def _commit(self) -> None:
        self._committed_ms = self._clock.monotonic_ms()
        if not self._taken:
            return
        is_committed = await self._member.commit(self._taken)
        self._taken = {}  # not before: who is stopped in the middle of it commits at the end
        if not is_committed:
            self._told(
                f"group {self._group.group_id}: this member was not heard in time; records of the last second and more"
                " may be read again, by it or by another"
            )

    async def _farewell(self) -> None:
        for what, act in (("what was read last is not committed", self._commit), ("left unheard", self._member.leave)):
            try:
                async with asyncio.timeout(FAREWELL_MS / 1000):
                    await act()
            except (SiltstoneError, TimeoutError) as error:
                why = error.message if isinstance(error, SiltstoneError) else "its coordinator does not answer"
                self._told(f"group {self._group.group_id}: {what}: {why}")
