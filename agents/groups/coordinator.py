"""The group coordinator of one agent: a thin shell around the state machines of the groups it owns.

A group is taken when it is first asked for, under an epoch that fences the previous owner. It is given up in three
cases: the list of live agents names another owner, a write of ours is fenced, or the outcome of a write of ours is
unknown. Waiting clients are then answered NOT_COORDINATOR and find the next owner, which continues with the same
members and generation.

An agent that stops serves its groups until the others know that it goes, and gives all up at once. An agent whose lease
may have run out gives all up too and answers nothing from memory, whatever its list of agents says: others may have had
its groups meanwhile although the list looks the same. Once a beat it also asks the store whether it still owns the
groups that it holds: an agent that came, took a group and left between two beats shows in no list, and two agents may
disagree about an owner while they learn of each other. A group that could not be checked for as long as a lease is
given up too.

Groups that have members and that no client asks for are taken little by little, so that the sessions of members that
died together with their owner end.

Nothing here waits for the object store. A client that disconnects leaves a future that nobody awaits, and the future is
dropped.

Memory: at most GROUPS_MAX groups and BYTES_MAX bytes of members' metadata and assignments are held. A group without
members is forgotten (not deleted) when no client has asked for it for IDLE_MS, or at once when there is no room. Above
the bounds new groups and members are told to come again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, TypeVar

from agents.groups.events import (
    CommitRequested,
    DeleteRequested,
    GroupOptions,
    GroupState,
    GroupView,
    HeartbeatRequested,
    JoinRequested,
    PlainAnswer,
)
from agents.groups.group import Group
from agents.groups.held import AnyAnswer, GroupRefusedError, HeldGroup, Request
from agents.groups.offset_commits import OffsetCommits, Outcome
from agents.groups.ownership import owner
from agents.membership import Membership
from metadata.contract.errors import MetadataUnavailableError
from metadata.contract.leases import BEAT_MS, LEASE_MS, AgentInfo, WriterFencedError
from metadata.groups.contract import (
    GroupFencedError,
    GroupLease,
    GroupMetadata,
    GroupRecord,
    OffsetPlace,
    OffsetToCommit,
)
from metadata.transactions.contract import TransactionMetadata
from runtime.logging import get_logger
from runtime.runtime import Runtime
from wire.error_codes import ErrorCode

_log = get_logger(__name__)

GROUPS_MAX = 20_000
BYTES_MAX = 256 << 20
IDLE_MS = 60_000.0
SWEEP_MS = 5_000.0
"""Pause between two sweeps. A sweep forgets idle groups and takes groups that no client asks for."""
ADOPTED_PER_SWEEP = 50
"""Groups taken in one sweep: groups with members that no client asks for."""
ADOPTION_PAGE_GROUPS = 1_000
"""Group ids read from the store in one sweep."""
CHECKED_PER_CALL = 2_000
"""Held groups in one query that asks the store whether this agent still owns them."""
LOADS_MAX = 2
"""Groups taken at once: after a failover there are many, and commits of records share the store's connections."""
LOAD_WAIT_MS_MAX = 5_000.0
"""A silent store may take longer than this; the client is told to come again."""

A = TypeVar("A", bound=AnyAnswer)


class GroupCoordinator:
    def __init__(
        self,
        *,
        options: GroupOptions,
        metadata: GroupMetadata,
        transactions: TransactionMetadata,
        membership: Membership,
        runtime: Runtime,
    ) -> None:
        self.options = options
        self.metadata = metadata
        self.clock = runtime.clock
        self.metrics = runtime.metrics
        self.commits = OffsetCommits(metadata=metadata, transactions=transactions, runtime=runtime, on_lost=self._lost)
        self.tasks: set[asyncio.Task[None]] = set()
        self._membership = membership
        self._held: dict[str, HeldGroup] = {}
        self._loading: dict[str, asyncio.Task[HeldGroup | None]] = {}
        self._loads = asyncio.Semaphore(LOADS_MAX)
        self._deletions: dict[str, asyncio.Task[ErrorCode]] = {}
        self._lapses = 0
        self._adopted: str | None = None
        """Groups up to this id were looked at."""
        self._adopts_at_version = -1
        self._sweeps: asyncio.Task[None] | None = None
        self._checks: asyncio.Task[None] | None = None
        self._checked_ms = runtime.clock.monotonic_ms()
        """When all that is held was last known to be the store's truth, or was taken later."""
        self._bytes = 0
        self._last_request = 0
        self._stopped = False

    # ---- life

    def start(self) -> None:
        self.commits.start()
        self._membership.on_change = self._agents_changed
        self._membership.on_lapse = self._lapsed
        self._sweeps = asyncio.create_task(self._sweep_for_ever(), name="group sweep")
        self._checks = asyncio.create_task(self._check_for_ever(), name="group check")

    async def drain(self) -> None:
        """Give all groups up, and write the accepted commits. Call it when the others know that this agent goes."""
        self._stopped = True
        for held in list(self._held.values()):
            self._unload(held, ErrorCode.NOT_COORDINATOR)
        await self.commits.drain()

    async def close(self) -> None:
        self._stopped = True
        rounds = [each for each in (self._sweeps, self._checks) if each is not None]
        tasks: list[asyncio.Task[Any]] = [*self.tasks, *self._loading.values(), *self._deletions.values(), *rounds]
        for held in list(self._held.values()):
            self._unload(held, ErrorCode.NOT_COORDINATOR)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.commits.close()

    # ---- who owns what

    def owner(self, group_id: str) -> AgentInfo | None:
        """The owner by this agent's list; None if no agent is alive."""
        return owner(group_id, self._membership.agents)

    def owns(self, group_id: str) -> bool:
        """A group of this name would be taken here. A held group stays until another owner is known."""
        if self._stopped or not self._membership.lease_runs:
            return False
        found = self.owner(group_id)
        return found is not None and found.writer_id == self._membership.node_id

    @property
    def lease_runs(self) -> bool:
        """While the lease does not run, this agent owns nothing and does not know who does."""
        return self._membership.lease_runs

    def check_owned(self, group_id: str) -> None:
        """Raises GroupRefusedError."""
        if self._holding(group_id) is None and not self.owns(group_id):
            raise GroupRefusedError(ErrorCode.NOT_COORDINATOR, "another agent coordinates the group")

    # ---- requests

    def next_request(self) -> int:
        """A number for a request."""
        self._last_request += 1
        return self._last_request

    async def ask(self, group_id: str, event: Request, kind: type[A], *, create: bool = False) -> A | None:
        """The answer of the group's machine, however long it takes. None if there is no such group.

        Raises GroupRefusedError.
        """
        held = await self._group(group_id, create=create)
        if held is None:
            return None
        # Joins alone are turned away: the requests by which a group completes or shrinks must go on.
        if isinstance(event, JoinRequested) and self._bytes > BYTES_MAX:
            self._forget_idle(0.0)
            if self._bytes > BYTES_MAX:
                raise GroupRefusedError(
                    ErrorCode.COORDINATOR_NOT_AVAILABLE,
                    "groups take all the memory that this agent has for them; try again later",
                )
        return _of_kind(await held.ask(event), kind)

    def heartbeat_at_once(self, group_id: str, event: HeartbeatRequested) -> PlainAnswer | None:
        """The answer of a group that is held. None: use `ask`. Raises GroupRefusedError.

        Runs without a turn of the event loop, so that heartbeats that arrived while the loop was blocked count before
        the timers that would end their members.
        """
        held = self._holding(group_id)
        answer = None if held is None else held.ask_at_once(event)
        return None if answer is None else _of_kind(answer, PlainAnswer)

    async def commit(self, group_id: str, event: CommitRequested, offsets: Sequence[OffsetToCommit]) -> Outcome | None:
        """The outcomes of these offset commits. None if there is no such group. Raises GroupRefusedError."""
        held = await self._group(group_id, create=event.generation < 0)
        if held is None:
            return None
        # The machine judges a commit at once, so no other event comes between the verdict and the place in line.
        answer = _of_kind(await held.ask(event), PlainAnswer)
        if answer.error is not ErrorCode.NONE:
            self.metrics.offset_commits_total.labels(outcome="refused").inc()
            return answer.error
        return await self.commits.add(held.lease, offsets, event.producer)

    async def view(self, group_id: str) -> GroupView | None:
        """The group as it is. A group that is not held is taken if it has members (only then can they be known to
        live), and is shown as stored if it has none. None if there is no such group.

        Raises GroupRefusedError.
        """
        self.check_owned(group_id)
        held = self._holding(group_id)
        if held is None:
            try:
                record = await self.metadata.group(group_id)
            except MetadataUnavailableError as error:
                raise GroupRefusedError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error)) from error
            if record is None:
                return None
            if not record.members:
                return self._machine(group_id, record).view()
            # With members it is taken: only the machine that runs their sessions knows who still lives.
            held = await self._group(group_id, create=False)
        return None if held is None else held.machine.view()

    def state_of(self, group_id: str) -> str | None:
        """The offsets of a group that is held."""
        held = self._held.get(group_id)
        return None if held is None else held.machine.state.value

    async def delete_offsets(self, group_id: str, places: Sequence[OffsetPlace]) -> None:
        """Raises GroupRefusedError."""
        held = await self._group(group_id, create=False)
        if held is None:
            return
        # Commits that were accepted before must not be written behind the deletion and bring offsets back.
        await self.commits.settled(group_id)
        try:
            await self.metadata.delete_offsets(held.lease, places)
        except (GroupFencedError, MetadataUnavailableError) as error:
            raise self._given_up(held, error) from error

    async def delete(self, group_id: str) -> ErrorCode:
        """Delete a group without members, with its offsets. The deletion continues even if the caller has gone;
        requests that come meanwhile get its outcome. Raises GroupRefusedError."""
        deletion = self._deletions.get(group_id)
        if deletion is None:
            deletion = asyncio.create_task(self._delete(group_id), name="group deletion")
            self._deletions[group_id] = deletion
            deletion.add_done_callback(_heard)
        return await asyncio.shield(deletion)

    async def _delete(self, group_id: str) -> ErrorCode:
        """Once the machine has agreed the group is Dead, so it must not stay held, whatever happens in between."""
        held = None
        try:
            held = await self._group(group_id, create=False)
            if held is None:
                return ErrorCode.GROUP_ID_NOT_FOUND
            answer = _of_kind(await held.ask(DeleteRequested(request=self.next_request())), PlainAnswer)
            if answer.error is not ErrorCode.NONE:
                return answer.error
            # As above: no offset may outlive its group.
            await self.commits.settled(group_id)
            try:
                await self.metadata.delete_group(held.lease)
            except (GroupFencedError, MetadataUnavailableError) as error:
                raise self._given_up(held, error) from error
            self._unload(held, ErrorCode.GROUP_ID_NOT_FOUND)
            return ErrorCode.NONE
        finally:
            del self._deletions[group_id]
            if held is not None and held.machine.state is GroupState.DEAD:
                self._lost(held.lease, ErrorCode.COORDINATOR_NOT_AVAILABLE)

    # ---- loading

    def _holding(self, group_id: str) -> HeldGroup | None:
        """The group, if it is held and may be answered for from memory."""
        held = self._held.get(group_id)
        if held is None:
            return None
        if self._may_be_stale:
            self._lapsed()
        elif held.machine.state is GroupState.DEAD and group_id not in self._deletions:
            self._lost(held.lease, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return self._held.get(group_id)

    async def _group(self, group_id: str, *, create: bool) -> HeldGroup | None:
        """The group, taken first if needed. None if there is none and `create` is False. Only one take of a group is
        under way at a time: a second would fence the first. Raises GroupRefusedError."""
        while True:
            held = self._holding(group_id)
            if held is not None:
                return held
            self.check_owned(group_id)
            loading = self._loading.get(group_id)
            ours = loading is None
            if loading is None:
                loading = asyncio.create_task(self._load(group_id, create), name="group load")
                self._loading[group_id] = loading
                loading.add_done_callback(_heard)
            try:
                async with asyncio.timeout(LOAD_WAIT_MS_MAX / 1000):
                    held = await asyncio.shield(loading)
            except TimeoutError:
                raise GroupRefusedError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the group was not read in time") from None
            if held is not None and not held.ended:
                return held
            # A shared take may have been another caller's with `create` False: then ask again, with ours.
            if held is None and (ours or not create):
                return None

    async def _load(self, group_id: str, create: bool) -> HeldGroup | None:
        try:
            async with self._loads:
                self._make_room()
                self.check_owned(group_id)  # waiting took time
                lapses = self._lapses
                taken = await self.metadata.take_group(group_id, owner=self._membership.current, create=create)
            if taken is None:
                return None
            # The call took time: by now another agent may own the group, or have owned it and given it back.
            if not self.owns(group_id) or lapses != self._lapses:
                raise GroupRefusedError(ErrorCode.NOT_COORDINATOR, "another agent coordinates the group now")
            held = self._held[group_id] = HeldGroup(
                coordinator=self,
                lease=taken.lease,
                machine=self._machine(group_id, taken.record),
                on_lost=self._lost,
                on_bytes=self._count_bytes,
            )
            _log.debug("group taken", group=group_id, epoch=taken.lease.epoch, members=len(taken.record.members))
            return held
        except (MetadataUnavailableError, WriterFencedError) as error:
            _log.warning("group not taken", group=group_id, error=str(error))
            raise GroupRefusedError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error)) from error
        finally:
            del self._loading[group_id]

    def _machine(self, group_id: str, record: GroupRecord) -> Group:
        return Group(group_id, self.options, record, self.clock.monotonic_ms())

    def _make_room(self) -> None:
        if len(self._held) >= GROUPS_MAX or self._bytes > BYTES_MAX:
            self._forget_idle(0.0)
        if len(self._held) >= GROUPS_MAX or self._bytes > BYTES_MAX:
            raise GroupRefusedError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, "this agent holds its maximum number of groups; try again later"
            )

    def _count_bytes(self, more: int) -> None:
        self._bytes += more
        self.metrics.group_bytes.set(self._bytes)

    # ---- unloading

    def _agents_changed(self) -> None:
        node_id = self._membership.node_id
        if all(agent.writer_id != node_id for agent in self._membership.agents):
            return  # we drain: groups that we hold are served until `drain`, by then the others know
        for held in list(self._held.values()):
            if not self.owns(held.group_id):
                self._unload(held, ErrorCode.NOT_COORDINATOR)

    @property
    def _may_be_stale(self) -> bool:
        unchecked_ms = self.clock.monotonic_ms() - self._checked_ms
        return not self._membership.lease_runs or unchecked_ms > LEASE_MS

    def _lapsed(self) -> None:
        self._lapses += 1
        self._checked_ms = self.clock.monotonic_ms()
        if self._held:
            _log.warning("lease may have run out, all groups given up", groups=len(self._held))
        for held in list(self._held.values()):
            self._unload(held, ErrorCode.NOT_COORDINATOR)

    def _lost(self, lease: GroupLease, error: ErrorCode) -> None:
        held = self._held.get(lease.group_id)
        if held is not None and held.lease == lease:
            if error is ErrorCode.NOT_COORDINATOR:
                self.metrics.groups_fenced_total.inc()
            _log.info("group given up", group=lease.group_id, epoch=lease.epoch, reason=error.name)
            self._unload(held, error)

    def _given_up(self, held: HeldGroup, error: Exception) -> GroupRefusedError:
        fenced = isinstance(error, GroupFencedError)
        code = ErrorCode.NOT_COORDINATOR if fenced else ErrorCode.COORDINATOR_NOT_AVAILABLE
        self._lost(held.lease, code)
        return GroupRefusedError(code, str(error))

    def _unload(self, held: HeldGroup, error: ErrorCode) -> None:
        if self._held.get(held.group_id) is held:
            del self._held[held.group_id]
        held.unload(error)

    def _forget_idle(self, idle_ms: float) -> None:
        before_ms = self.clock.monotonic_ms() - idle_ms
        for held in list(self._held.values()):
            if held.used_ms <= before_ms and held.may_be_forgotten:
                self._unload(held, ErrorCode.NOT_COORDINATOR)

    async def _sweep_for_ever(self) -> None:
        while True:
            await self.clock.sleep_ms(SWEEP_MS)
            if self._held and self._may_be_stale:
                self._lapsed()
            self._forget_idle(IDLE_MS)
            try:
                await self.adopt()
            except (GroupRefusedError, MetadataUnavailableError) as error:
                _log.info("idle groups not searched, the next round tries again", error=str(error))
            except Exception:
                _log.exception("idle groups not searched, the next round tries again")

    async def _check_for_ever(self) -> None:
        while True:
            await self.clock.sleep_ms(BEAT_MS)
            try:
                await self.check()
            except MetadataUnavailableError as error:
                _log.info("ownership of groups not checked, the next round tries again", error=str(error))
            except Exception:
                _log.exception("ownership of groups not checked, the next round tries again")

    async def check(self) -> None:
        """Give up groups that another agent took unnoticed. Raises MetadataUnavailableError."""
        # Read before the questions are asked: each answer proves ownership at some later moment.
        since_ms, lapses = self.clock.monotonic_ms(), self._lapses
        # A group that is being deleted is gone from the store a moment before it is gone here.
        leases = [held.lease for held in self._held.values() if held.group_id not in self._deletions]
        for at in range(0, len(leases), CHECKED_PER_CALL):
            for lease in await self.metadata.fenced_leases(leases[at : at + CHECKED_PER_CALL]):
                self._lost(lease, ErrorCode.NOT_COORDINATOR)
        # After a lapse meanwhile nothing of the old is held, and the lapse has set a later time.
        if lapses == self._lapses:
            self._checked_ms = since_ms

    async def adopt(self) -> None:
        """Take some of the groups with members that are ours and not held, starting after the ids of the last round.

        Not while agents come and go, because others may then disagree about owners. Raises MetadataUnavailableError,
        GroupRefusedError.
        """
        # The list must have stood still since the last sweep.
        version, self._adopts_at_version = self._adopts_at_version, self._membership.version
        if version != self._membership.version or self._stopped or not self._membership.lease_runs:
            return
        page = await self.metadata.groups_with_members(after=self._adopted, limit=ADOPTION_PAGE_GROUPS)
        adopted = 0
        for group_id in page:
            if adopted == ADOPTED_PER_SWEEP or self._membership.version != version:
                return
            # Noted before the take, so that a group that cannot be taken does not block those behind it.
            self._adopted = group_id
            if group_id not in self._held and self.owns(group_id):
                await self._group(group_id, create=False)
                adopted += 1
        if len(page) < ADOPTION_PAGE_GROUPS:
            self._adopted = None


def _of_kind(answer: AnyAnswer, kind: type[A]) -> A:
    if not isinstance(answer, kind):
        raise TypeError(f"the group answered a {type(answer).__name__} where a {kind.__name__} was asked for")
    return answer


def _heard(task: asyncio.Task[Any]) -> None:
    """The waiting clients may be gone: a load or a deletion that fails with no client waiting is not reported."""
    if not task.cancelled():
        task.exception()
