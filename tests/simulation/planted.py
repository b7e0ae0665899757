"""Bugs planted on purpose, each of a kind that lost or doubled data in a design that looked simpler.

A simulation that does not find them proves nothing. Each is a context manager that puts the bug into the product while
it is open; `test_planted.py` asserts that each is found within a bounded number of seeds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from agents.agent import Agent
from agents.tail.follower import Follower
from agents.tail.log_index import FileRef, LogIndex
from agents.write.path import COMMIT_BACKOFF_MS, FileOnItsWay, WritePath
from agents.zone.frames import answer_crc, decode_answer_head, encode_answer
from agents.zone.server import ZoneServer
from metadata.contract.errors import MetadataUnavailableError
from metadata.contract.files import FileState, L0File
from metadata.contract.l0_commit import CommitInDoubtError, CommitL0, Committed, L0Batch
from metadata.contract.topics import Watermarks
from metadata.memory import agents as memory
from metadata.memory.agents import MemoryAgents
from metadata.rules.producer_state import judge
from storage.objects import PutInDoubtError
from storage.wrappers.retrying import Retrying
from tests.simulation import planted_access, planted_hedges, planted_seals, planted_stores, planted_transactions
from tests.simulation.services import SimulatedMetadata
from wire.error_codes import ErrorCode

Plant = Callable[[], AbstractContextManager[None]]


async def _commit_once(self: Any, file: FileOnItsWay, batches: Sequence[L0Batch]) -> Committed:
    """`WritePath._commit_until_answered` without the repeats."""
    request = CommitL0(
        lease=file.lease,
        seq=file.seq,
        key=file.key,
        size_bytes=len(file.sealed.file.body),
        crc32c=file.sealed.file.crc32c,
        batches=batches,
    )
    return await self._metadata.commit_l0(request)


async def _commit_until_sent(self: Any, file: FileOnItsWay, batches: Sequence[L0Batch]) -> Committed:
    """`WritePath._commit_until_answered`, which repeats only a commit that did not reach the metadata."""
    while True:
        try:
            return await _commit_once(self, file, batches)
        except MetadataUnavailableError:
            await self._clock.sleep_ms(COMMIT_BACKOFF_MS)


@contextmanager
def seals_again_what_is_in_doubt() -> Iterator[None]:
    """A commit whose answer was lost is taken for lost: its batches go into the next file."""
    finish = WritePath._finish

    async def sealing_again(self: Any, file: FileOnItsWay) -> None:
        try:
            await finish(self, file)
        except CommitInDoubtError:
            for submission in file.sealed.submissions:
                self._buffer.add(submission, self._clock.monotonic_ms())
            self._poke()

    with (
        patch.object(WritePath, "_commit_until_answered", _commit_until_sent),
        patch.object(WritePath, "_finish", sealing_again),
    ):
        yield


@contextmanager
def takes_an_unreached_repeat_for_never_done() -> Iterator[None]:
    """A commit that did not reach the metadata is taken for not done, though an earlier try is in doubt."""
    finish = WritePath._finish

    async def until_unreached(self: Any, file: FileOnItsWay, batches: Sequence[L0Batch]) -> Committed:
        while True:
            try:
                return await _commit_once(self, file, batches)
            except CommitInDoubtError:
                await self._clock.sleep_ms(COMMIT_BACKOFF_MS)

    async def sealing_again(self: Any, file: FileOnItsWay) -> None:
        try:
            await finish(self, file)
        except MetadataUnavailableError:
            for submission in file.sealed.submissions:
                self._buffer.add(submission, self._clock.monotonic_ms())
            self._poke()

    with (
        patch.object(WritePath, "_commit_until_answered", until_unreached),
        patch.object(WritePath, "_finish", sealing_again),
    ):
        yield


@contextmanager
def serves_over_a_gap() -> Iterator[None]:
    """An extent above the known end is taken in at once, as if no extent below it could be missing."""
    add_file = LogIndex.add_file

    def eager(self: Any, file_id: int, ref: FileRef, rows: Any, **more: Any) -> list[int]:
        rows = list(rows)
        for row in rows:
            log = self.partition(row.partition_id)
            if log is not None:
                log.end = max(log.end, row.base_offset)
        return add_file(self, file_id, ref, rows, **more)

    with patch.object(LogIndex, "add_file", eager):
        yield


@contextmanager
def takes_a_put_in_doubt_for_done() -> Iterator[None]:
    """No HEAD: if the answer of a PUT was lost, the object is taken for stored."""
    publish = Retrying.publish

    async def hopeful(self: Any, call: Any, key: str, *, size_bytes: int, crc32c: int) -> None:
        async def without_doubt() -> None:
            try:
                await call()
            except PutInDoubtError:
                return

        await publish(self, without_doubt, key, size_bytes=size_bytes, crc32c=crc32c)

    with patch.object(Retrying, "publish", hopeful):
        yield


@contextmanager
def deletes_without_winning_the_key() -> Iterator[None]:
    """The janitor checks whether a key was committed and deletes it if not, without aborting it first."""

    async def looks_only(self: Any, key: str) -> bool:
        return not await SimulatedMetadata.known_keys(self, [key])

    with patch.object(SimulatedMetadata, "abort_file", looks_only), _deletions_unwatched():
        yield


@contextmanager
def _deletions_unwatched() -> Iterator[None]:
    """Leave the bug to the checks at the end: the watch on deletions would see it at once."""
    from tests.simulation.world import World

    with patch.object(World, "deleting", lambda *_: None):
        yield


@contextmanager
def reads_producers_before_the_locks() -> Iterator[None]:
    """The commit judges by the producers as they were when it was sent. One SQL statement alone would do just this."""
    commit_l0 = SimulatedMetadata.commit_l0
    before: dict[str, Mapping[Any, Any]] = {}

    async def remembering(self: Any, request: CommitL0) -> Committed:
        before[request.key] = dict(self.server.database.producers)
        return await commit_l0(self, request)

    on_far_side = MemoryAgents.commit_l0

    async def late(self: Any, request: CommitL0) -> Committed:
        def stale(batches: Sequence[L0Batch], *, producers: Any, **rest: Any) -> Any:
            return judge(batches, producers=before.get(request.key, producers), **rest)

        with patch.object(memory, "judge", stale):
            return await on_far_side(self, request)

    with patch.object(SimulatedMetadata, "commit_l0", remembering), patch.object(MemoryAgents, "commit_l0", late):
        yield


@contextmanager
def answers_latest_from_memory() -> Iterator[None]:
    """ListOffsets and "out of range" are answered from the files that this agent has seen so far."""
    make = Agent._broker

    def forgetful(self: Any, *args: Any) -> Any:
        broker = make(self, *args)

        async def get(partition_ids: Sequence[int]) -> Mapping[int, Watermarks]:
            logs = {id_: broker.index.partition(id_) for id_ in partition_ids}
            return {
                id_: Watermarks(
                    partition_id=id_,
                    log_start_offset=log.start,
                    last_stable_offset=log.end,
                    high_watermark=log.end,
                )
                for id_, log in logs.items()
                if log is not None
            }

        broker.fresh.get = get
        return broker

    with patch.object(Agent, "_broker", forgetful):
        yield


@contextmanager
def goes_on_after_a_doubt() -> Iterator[None]:
    """A commit whose answer was lost is reported lost and never repeated, and the next own commit moves the follower's
    cursor past it. If the lost commit was carried out, this agent never sees its batches."""
    saw_own = Follower.saw_own

    def leaping(self: Any, file: L0File) -> None:
        saw_own(self, file)
        writers = dict(self._cursor.writers)
        writers[file.writer_id] = max(writers.get(file.writer_id, (0, 0)), (file.epoch, file.seq))
        self._cursor = replace(self._cursor, writers=writers)

    finish = WritePath._finish

    async def giving_up(self: Any, file: FileOnItsWay) -> None:
        try:
            await finish(self, file)
        except CommitInDoubtError as error:
            self._give_up(file, ErrorCode.KAFKA_STORAGE_ERROR, str(error))

    with (
        patch.object(Follower, "saw_own", leaping),
        patch.object(WritePath, "_commit_until_answered", _commit_until_sent),
        patch.object(WritePath, "_finish", giving_up),
    ):
        yield


@contextmanager
def fences_nobody() -> Iterator[None]:
    """The commit does not look at the writer's epoch."""
    check = MemoryAgents._check_writer

    def unfenced(self: Any, request: CommitL0) -> Any:
        writer = self.database.writers[request.lease.writer_id]
        lease = replace(request.lease, epoch=writer.epoch)
        return check(self, replace(request, lease=lease, seq=max(request.seq, writer.last_seq + 1)))

    with patch.object(MemoryAgents, "_check_writer", unfenced):
        yield


@contextmanager
def commits_an_aborted_key() -> Iterator[None]:
    """The commit does not see that its key was aborted."""
    commit_l0 = MemoryAgents.commit_l0

    async def blind(self: Any, request: CommitL0) -> Committed:
        file_id = self.database.file_ids.get(request.key)
        if file_id is not None and self.database.files[file_id].info.state is FileState.ABORTED:
            del self.database.file_ids[request.key]
        return await commit_l0(self, request)

    with patch.object(MemoryAgents, "commit_l0", blind):
        yield


@contextmanager
def gives_a_duplicate_another_offset() -> Iterator[None]:
    """A retry is recognised, but answered with the offset that the next batch will get."""

    def forgetful(batches: Sequence[L0Batch], *, next_offsets: Mapping[int, int], **rest: Any) -> Any:
        judged = judge(batches, next_offsets=next_offsets, **rest)
        results = [
            result._replace(base_offset=next_offsets[batch.partition_id]) if result.duplicate else result
            for batch, result in zip(batches, judged.results, strict=True)
        ]
        return replace(judged, results=results)

    with patch.object(memory, "judge", forgetful):
        yield


@contextmanager
def a_neighbour_serves_another_range() -> Iterator[None]:
    """The agent that serves a neighbour takes the wrong bytes of its memory, and makes their CRC from these."""
    parts = ZoneServer._parts

    async def shifted(self: Any, request: Any, pins: Any) -> Any:
        head, *views = await parts(self, request, pins)
        data = b"".join(views)
        if not data:
            return deque([head])
        data = data[len(data) // 2 :] + data[: len(data) // 2]
        said = decode_answer_head(head, request)
        return deque([encode_answer(replace(said, crc=answer_crc(request, said.age_ms, [data]))), data])

    with patch.object(ZoneServer, "_parts", shifted):
        yield


PLANTED: Mapping[str, Plant] = {
    plant.__name__.replace("_", "-"): plant
    for plant in (
        seals_again_what_is_in_doubt,
        takes_an_unreached_repeat_for_never_done,
        serves_over_a_gap,
        takes_a_put_in_doubt_for_done,
        deletes_without_winning_the_key,
        reads_producers_before_the_locks,
        answers_latest_from_memory,
        goes_on_after_a_doubt,
        fences_nobody,
        commits_an_aborted_key,
        gives_a_duplicate_another_offset,
        planted_stores.looks_for_l0_in_one_store,
        planted_stores.deletes_l0_from_the_first_store_only,
        planted_hedges.hedges_another_range,
        planted_hedges.hedges_without_a_bound,
        a_neighbour_serves_another_range,
        planted_seals.takes_no_tokens,
        planted_seals.fills_the_bucket_twice,
        planted_seals.takes_a_trickle_for_blocked,
        planted_seals.seals_early_in_a_stall,
        planted_seals.never_seals_early,
        planted_access.answers_before_others_know,
        planted_access.judges_a_parked_fetch_once,
        planted_access.keeps_rights_over_a_change,
        planted_access.judges_without_a_lease,
        *planted_transactions.ALL,
    )
}
