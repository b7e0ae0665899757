"""An asyncio event loop in which time is a number and a seed decides the order of events.

The loop never sleeps and opens no socket: when nothing is ready, time jumps to the next timer. Every callback belongs
to a `Process`, found through a context variable, so that everything a process starts belongs to it too. The loop draws
one of the processes that have something ready, and runs its oldest callback. A loop that `shuffles` draws the callback
as well; asyncio does not rule that out, and good code does not depend on the order.

A process is *killed* as by kill -9: no further line of it runs, no `finally`, no `__aexit__`. Its coroutines are kept
aside so that the garbage collector does not run those either. It is *frozen* as by SIGSTOP: callbacks that become ready
wait, and its timers ring when it thaws. A `trigger` strikes right before the n-th callback of a process from now, so a
kill and a freeze can happen at every await.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import random
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

CALLBACK_S = 0.000_01
"""The virtual time that one callback takes. No callback is free, so a busy loop ends at its deadline."""
CALLBACKS_MAX = 400_000
"""The most callbacks of a run; an ordinary run takes about 10,000."""

_PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


class StuckError(Exception):
    """Nothing is ready and no timer is set, or the run does not come to an end."""


class Process:
    """The unit that is killed, frozen and scheduled."""

    def __init__(self, loop: SimulationLoop, name: str) -> None:
        self.name = name
        self.ready: deque[asyncio.Handle] = deque()
        self.is_dead = False
        self.is_frozen = False
        self.callbacks_left = -1
        """The number of callbacks until `trigger` strikes; -1: never."""
        self.trigger: Callable[[], None] | None = None
        self.longest_sleep_ms = 0.0
        self._frozen_ms = 0.0
        self.context: Context = copy_context()
        self.context.run(_PROCESS.set, self)
        self._loop = loop

    @property
    def is_running(self) -> bool:
        return not (self.is_dead or self.is_frozen)

    def strike_after(self, callbacks: int, trigger: Callable[[], None]) -> None:
        self.callbacks_left, self.trigger = callbacks, trigger

    def spawn(self, coroutine: Coroutine[Any, Any, T], name: str = "") -> asyncio.Task[T]:
        return self._loop.create_task(coroutine, name=name or self.name, context=self.context)

    def kill(self) -> None:
        if not self.is_dead:
            self.is_dead = True
            self._loop.bury(self)

    def freeze(self) -> None:
        self.is_frozen = True
        self._frozen_ms = self._loop.now_ms
        self._loop.park(self)

    def thaw(self) -> None:
        self.is_frozen = False
        self.longest_sleep_ms = max(self.longest_sleep_ms, self._loop.now_ms - self._frozen_ms)
        if self.ready and not self.is_dead:
            self._loop.unpark(self)


class SimulationLoop(asyncio.BaseEventLoop):
    def __init__(self, rng: random.Random, *, shuffles: bool) -> None:
        super().__init__()
        self._rng = rng
        self._shuffles = shuffles
        self._now_s = 0.0
        self._runnable: list[Process] = []
        self._buried: list[object] = []
        self._is_over = False
        self.callbacks = 0
        self.outside = Process(self, "world")
        """Owns everything that belongs to no other process: the network, the far side of the stores, the nemesis."""

    # ---- time

    def time(self) -> float:
        return self._now_s

    @property
    def now_ms(self) -> float:
        return self._now_s * 1000

    def after(
        self, delay_ms: float, process: Process, callback: Callable[[*Ts], object], *args: *Ts
    ) -> asyncio.TimerHandle:
        """Run `callback` in `process`, in `delay_ms`."""
        return self.call_at(self._now_s + delay_ms / 1000, callback, *args, context=process.context)

    async def create_server(  # type: ignore[override]
        self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any
    ) -> Any:
        """`sock` is a listener of the simulated network, which can serve."""
        return options["sock"].serve(protocol_factory)

    def add_reader(self, fd: Any, callback: Any, *args: Any) -> None:
        """`fd` is such a listener: call back while a line waits there."""
        fd.watch(callback)

    def remove_reader(self, fd: Any) -> bool:
        return fd.watch(None)

    async def connect_accepted_socket(self, protocol_factory: Any, sock: Any, **options: Any) -> Any:  # type: ignore[override]
        """`sock` is a line that such a listener accepted."""
        sock.open(protocol_factory)

    # ---- what is ready

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:  # type: ignore[override]
        handle = events.Handle(callback, args, self, context)
        if not self._is_over:
            self._make_ready(handle)
        return handle

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:  # type: ignore[override]
        raise StuckError("a simulation has one thread")

    def _make_ready(self, handle: asyncio.Handle) -> None:
        process = handle._context.get(_PROCESS) or self.outside  # type: ignore[attr-defined]
        if process.is_dead:
            self._buried.append(handle)
            return
        if not process.ready and not process.is_frozen:
            self._runnable.append(process)
        process.ready.append(handle)

    def park(self, process: Process) -> None:
        if process in self._runnable:
            self._runnable.remove(process)

    def unpark(self, process: Process) -> None:
        if process not in self._runnable:
            self._runnable.append(process)

    def bury(self, process: Process) -> None:
        """Keep the coroutines of a killed process: if they were collected, their `finally` blocks would run."""
        self.park(process)
        self._buried.append(list(process.ready))
        self._buried.append(asyncio.all_tasks(self))
        process.ready.clear()

    # ---- running

    def _run_once(self) -> None:
        """Run everything until `stop`. asyncio's loop calls this again and again; here a turn is one callback."""
        runnable, scheduled, draw = self._runnable, self._scheduled, self._rng.random  # type: ignore[attr-defined]
        while not self._stopping:  # type: ignore[attr-defined]
            while scheduled and scheduled[0]._when <= self._now_s:
                timer = heapq.heappop(scheduled)
                timer._scheduled = False
                if not timer._cancelled:
                    self._make_ready(timer)
            if not runnable:
                if not scheduled:
                    raise StuckError("nothing is ready and no timer is set")
                self._now_s = max(self._now_s, scheduled[0]._when)
                continue
            place = int(draw() * len(runnable))
            process = runnable[place]
            ready = process.ready
            if self._shuffles and len(ready) > 1:
                ready.rotate(-int(draw() * len(ready)))
            handle = ready.popleft()
            if not ready:
                runnable[place] = runnable[-1]
                runnable.pop()
            if not handle._cancelled:  # type: ignore[attr-defined]
                self._run_one(process, handle)

    def _run_one(self, process: Process, handle: asyncio.Handle) -> None:
        self.callbacks += 1
        self._now_s += CALLBACK_S
        if self.callbacks > CALLBACKS_MAX:
            raise StuckError(f"no end after {self.callbacks} callbacks")
        if process.trigger is not None:
            process.callbacks_left -= 1
            if process.callbacks_left < 0:
                trigger, process.trigger = process.trigger, None
                self.outside.context.run(trigger)
                if process.is_dead:
                    self._buried.append(handle)
                    return
                if process.is_frozen:
                    process.ready.appendleft(handle)
                    return
        handle._run()  # type: ignore[attr-defined]

    def _process_events(self, event_list: object) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def _asyncgen_finalizer_hook(self, agen: object) -> None:
        """A generator left by a killed process or by the end of the run. No more of it runs."""

    # ---- the end

    def end(self) -> None:
        """End every remaining coroutine; their last steps are not part of the run."""
        self._is_over = True
        tasks = {*asyncio.all_tasks(self), *(task for each in self._buried if isinstance(each, set) for task in each)}
        for task in tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            with contextlib.suppress(BaseException):
                task.get_coro().close()  # type: ignore[union-attr]
        self._buried.clear()
        self._scheduled.clear()  # type: ignore[attr-defined]
        self.close()


class SimulationClock:
    """`runtime.clock.Clock` on the loop's time; `skew_ms` is how far this machine's wall clock is off."""

    START_MS = 1_700_000_000_000

    def __init__(self, loop: SimulationLoop, *, skew_ms: int = 0) -> None:
        self._loop = loop
        self._start_ms = self.START_MS + skew_ms

    def wall_ms(self) -> int:
        return self._start_ms + int(self._loop.now_ms)

    def monotonic_ms(self) -> float:
        return self._loop.now_ms

    async def sleep_ms(self, duration_ms: float) -> None:
        await asyncio.sleep(duration_ms / 1000)
