"""One group in the hands of its coordinator: the state machine, its lease, waiting requests, its timer and its saves.

The machine decides; this class carries its instructions out. Saves of a group are stored one at a time and in order. If
several saves wait, only the last is stored, because it replaces the others. A save begins when all offsets that were
accepted before it are written or refused: a member that learns the new assignment then reads offsets that nothing older
can overtake.

If a save's answer is lost, the group is given up. Repeating it under the same lease would not do: the first call may
still be on its way and arrive behind a later save. The next request takes the group under a new epoch, which fences
that call. A crash at any point leaves the record that was stored last; members learn nothing that is not stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import Protocol, TypeAlias

from agents.groups.events import (
    Answer,
    CommitRequested,
    DeleteRequested,
    Event,
    GroupState,
    HeartbeatRequested,
    JoinAnswer,
    JoinRequested,
    LeaveAnswer,
    LeaveRequested,
    PlainAnswer,
    Save,
    Saved,
    SaveFailed,
    SyncAnswer,
    SyncRequested,
    Unloaded,
    Woke,
)
from agents.groups.group import Group
from agents.groups.offset_commits import OffsetCommits
from agents.request_context import current_request
from metadata.contract.errors import MetadataUnavailableError
from metadata.groups.contract import GroupFencedError, GroupLease, GroupMetadata, GroupRecord
from runtime.clock import Clock
from runtime.errors import SiltstoneError
from runtime.logging import get_logger
from runtime.metrics import Metrics
from runtime.tracing import child_span
from wire.error_codes import ErrorCode

_log = get_logger(__name__)

TIMER_MS_MIN = 1.0

AnyAnswer: TypeAlias = JoinAnswer | SyncAnswer | LeaveAnswer | PlainAnswer
Request: TypeAlias = (
    JoinRequested | SyncRequested | HeartbeatRequested | LeaveRequested | CommitRequested | DeleteRequested
)


class GroupRefusedError(SiltstoneError):
    """The request cannot be handled here and now. The client gets `code` and asks again, perhaps elsewhere."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class Coordinated(Protocol):
    """The services that a group needs from its coordinator."""

    @property
    def metadata(self) -> GroupMetadata: ...
    @property
    def commits(self) -> OffsetCommits: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def metrics(self) -> Metrics: ...
    @property
    def tasks(self) -> set[asyncio.Task[None]]: ...


class HeldGroup:
    def __init__(
        self,
        *,
        coordinator: Coordinated,
        lease: GroupLease,
        machine: Group,
        on_lost: Callable[[GroupLease, ErrorCode], None],
        on_bytes: Callable[[int], None],
    ) -> None:
        """`on_lost` unloads the group; `on_bytes` gets each change of the memory that it takes."""
        self.lease = lease
        self.machine = machine
        self._coordinator = coordinator
        self._clock = coordinator.clock
        self._on_lost = on_lost
        self._on_bytes = on_bytes
        self._waiting: dict[int, asyncio.Future[AnyAnswer]] = {}
        self._saves: list[Save] = []
        self._saver: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms = 0.0
        self._state: GroupState | None = None
        self._bytes = 0
        self.ended = False
        self.used_ms = self._clock.monotonic_ms()
        self._took_place(self.used_ms)

    @property
    def group_id(self) -> str:
        return self.lease.group_id

    @property
    def bytes(self) -> int:
        """Approximate memory that the group takes."""
        return self._bytes

    @property
    def may_be_forgotten(self) -> bool:
        return not self._waiting and not self._saves and self._saver is None and self.machine.is_forgettable

    # ---- requests

    def ask_at_once(self, event: Request) -> AnyAnswer | None:
        """The answer, if the machine has it at once; otherwise None, and nothing waits. Raises GroupRefusedError."""
        waiting = self._begin(event)
        if waiting.done():
            return waiting.result()
        self._waiting.pop(event.request, None)
        return None

    async def ask(self, event: Request) -> AnyAnswer:
        """The answer, when it comes. The caller may be cancelled; then only the machine's own state of the member
        stays. Raises GroupRefusedError."""
        waiting = self._begin(event)
        if isinstance(event, JoinRequested | SyncRequested):
            return await self._rebalanced(event, waiting)
        try:
            return await waiting
        finally:
            self._waiting.pop(event.request, None)

    async def _rebalanced(self, event: Request, waiting: asyncio.Future[AnyAnswer]) -> AnyAnswer:
        """Requests that wait for other members: these are not slow, however long they take."""
        request, started_ms = current_request(), self._clock.monotonic_ms()
        with child_span("rebalance", attributes={"siltstone.group.epoch": self.lease.epoch}):
            try:
                return await waiting
            finally:
                self._waiting.pop(event.request, None)
                if request is not None:
                    request.waited_ms += self._clock.monotonic_ms() - started_ms

    def unload(self, error: ErrorCode) -> None:
        """Answer all waiting requests, and end."""
        if self.ended:
            return
        # The machine answers parked requests by their kind; the loop below ends all others.
        self._handle(Unloaded(error=error))
        self.ended = True
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(GroupRefusedError(error, "the group was unloaded"))
        self._saves.clear()
        if self._timer is not None:
            self._timer.cancel()
        if self._state is not None:
            self._coordinator.metrics.groups.labels(state=self._state.value).dec()
            self._state = None
        self._on_bytes(-self._bytes)
        self._bytes = 0

    def _begin(self, event: Request) -> asyncio.Future[AnyAnswer]:
        if self.ended:
            raise GroupRefusedError(ErrorCode.NOT_COORDINATOR, "the group was unloaded")
        waiting: asyncio.Future[AnyAnswer] = asyncio.get_running_loop().create_future()
        self._waiting[event.request] = waiting
        self._handle(event)
        return waiting

    # ---- the machine

    def _handle(self, event: Event) -> None:
        if self.ended:
            return
        now_ms = self._clock.monotonic_ms()
        for instruction in self.machine.handle(event, now_ms):
            match instruction:
                case Answer():
                    # None: its client has gone. The machine does not know, and its answer is dropped.
                    waiting = self._waiting.pop(instruction.request, None)
                    if waiting is not None and not waiting.done():
                        waiting.set_result(instruction.answer)
                case Save():
                    self._saves.append(instruction)
        if not isinstance(event, Unloaded):
            self._took_place(now_ms)

    def _took_place(self, now_ms: float) -> None:
        self.used_ms = now_ms
        self._set_bytes(self.machine.bytes)
        self._count(self.machine.state)
        self._set_timer(now_ms)
        if self._saves and self._saver is None:
            # A context of its own: the save stores what all requests have asked for so far, and goes on with what
            # others ask meanwhile.
            self._saver = asyncio.create_task(self._save(), name="group save", context=Context())
            self._coordinator.tasks.add(self._saver)  # a save under way outlives its group, up to its fenced end
            self._saver.add_done_callback(self._coordinator.tasks.discard)

    def _count(self, state: GroupState) -> None:
        if state is self._state:
            return
        metrics = self._coordinator.metrics
        if self._state is not None:
            metrics.groups.labels(state=self._state.value).dec()
            if state is GroupState.COMPLETING_REBALANCE:
                metrics.group_rebalances_total.inc()
        metrics.groups.labels(state=state.value).inc()
        self._state = state

    def _set_timer(self, now_ms: float) -> None:
        """Wake at the machine's time or earlier: heartbeats move that time on, and the timer need not follow."""
        wake_at_ms = self.machine.wake_at_ms
        if wake_at_ms is None or (self._timer is not None and self._timer_at_ms <= wake_at_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        delay_s = max(wake_at_ms - now_ms, TIMER_MS_MIN) / 1000
        self._timer_at_ms = wake_at_ms
        # A context of its own: the timer's work does not belong to the request that happened to set it.
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._wake, context=Context())

    def _wake(self) -> None:
        self._timer = None
        wake_at_ms, now_ms = self.machine.wake_at_ms, self._clock.monotonic_ms()
        if wake_at_ms is not None and wake_at_ms <= now_ms:
            used_ms = self.used_ms
            self._handle(Woke())
            self.used_ms = used_ms  # no request waits
        else:
            self._set_timer(now_ms)

    # ---- saves

    async def _save(self) -> None:
        try:
            while self._saves and not self.ended:
                # All that wait are settled by the last record, which holds what the others would have stored.
                saves, self._saves = self._saves, []
                stored = await self._store(saves[-1].record)
                for save in saves:
                    self._handle(Saved(save=save.save) if stored else SaveFailed(save=save.save))
        except GroupFencedError:
            self._on_lost(self.lease, ErrorCode.NOT_COORDINATOR)
        except MetadataUnavailableError as error:
            _log.warning("group may not be stored", group=self.group_id, error=str(error))
            self._on_lost(self.lease, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        except Exception:
            _log.exception("group not stored", group=self.group_id)
            self._on_lost(self.lease, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        finally:
            self._saver = None
        if self._saves and not self.ended:
            self._took_place(self.used_ms)

    async def _store(self, record: GroupRecord) -> bool:
        """False if it was definitely refused."""
        # See the module's docstring: offsets accepted before must be readable once members learn this record.
        await self._coordinator.commits.settled(self.group_id)
        try:
            await self._coordinator.metadata.save_group(self.lease, record)
        except (GroupFencedError, MetadataUnavailableError):
            raise
        except SiltstoneError as error:
            _log.warning("group refused by the metadata store", group=self.group_id, error=str(error))
            return False
        return True

    # ---- memory

    def _set_bytes(self, total: int) -> None:
        self._on_bytes(total - self._bytes)
        self._bytes = total
