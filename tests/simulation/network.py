"""Lines between clients and agents: bytes arrive in order, late, in pieces, or not at all.

An agent's side of a line is an asyncio transport below the real `Connection` of an agent; a client's side is
`ClientEnd`. A line that is cut loses the bytes on their way, or delivers some of them first, as TCP may. A listener
accepts lines while its process sleeps, as a kernel's backlog does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

from agents.zone.lines import Dial
from tests.simulation.faults import Fault, Faults, Path
from tests.simulation.loop import Process, SimulationLoop
from wire.schema import Octets

_END: Final = object()
"""The other side has closed its end in good order."""
_LOST: Final = object()
"""The line is cut."""


class Network:
    def __init__(self, loop: SimulationLoop, faults: Faults) -> None:
        self.loop = loop
        self.faults = faults
        self.latency_ms_max = faults.rng.choice((0.5, 2, 10))
        self.piece_bytes_max = faults.rng.choice((1 << 20, 1 << 20, 700, 61))
        self.write_high_bytes = faults.rng.choice((1 << 18, 1 << 18, 300))
        self._listeners: dict[str, Listener] = {}
        self._lines: dict[AgentEnd, None] = {}

    def binder(self, process: Process) -> Callable[[str], Any]:
        """The `bind` of an agent in `process`."""

        def bind(address: str) -> Listener:
            listener = self._listeners[address] = Listener(self, process, address)
            return listener

        return bind

    def dialer(self, process: Process) -> Dial:
        """The way of an agent in `process` to its neighbours."""

        async def dial(factory: Callable[[], asyncio.BufferedProtocol], host: str, port: int) -> None:
            transport = DialledTransport(self, process, factory())
            await self.connect(transport.end, f"{host}:{port}")
            transport.open()

        return dial

    async def connect(self, client: ClientEnd, address: str) -> None:
        """Raises ConnectionRefusedError if no process listens there."""
        await asyncio.sleep(self.latency_ms() / 1000)
        listener = self._listeners.get(address)
        if listener is None or listener.process.is_dead:
            raise ConnectionRefusedError(address)
        line = client.line = AgentEnd(self, listener.process, client)
        self._lines[line] = None
        listener.take(line)

    def latency_ms(self) -> float:
        return 0.05 + self.faults.rng.random() * self.latency_ms_max

    def forget(self, line: AgentEnd) -> None:
        self._lines.pop(line, None)

    def close_listener(self, listener: Listener) -> None:
        if self._listeners.get(listener.address) is listener:
            del self._listeners[listener.address]

    def cut_all_of(self, process: Process) -> None:
        """The process is dead: its kernel resets its lines."""
        for line in [line for line in self._lines if process in (line.process, line.client_process)]:
            line.cut()


class Listener:
    """A bound address: the result of `bind`. An agent accepts on it itself; asyncio's server would `serve` it."""

    def __init__(self, network: Network, process: Process, address: str) -> None:
        self.process = process
        self.address = address
        self._network = network
        self._factory: Callable[[], asyncio.BufferedProtocol] | None = None
        self._readable: Callable[[], object] | None = None
        self._backlog: deque[AgentEnd] = deque()

    def getsockname(self) -> tuple[str, int]:
        host, _, port = self.address.rpartition(":")
        return host, int(port)

    def setblocking(self, _: bool) -> None:
        """It never blocks."""

    def serve(self, factory: Callable[[], asyncio.BufferedProtocol]) -> Listener:
        self._factory = factory
        for line in self._backlog:
            self._network.loop.after(0, self.process, line.open, factory)
        self._backlog.clear()
        return self

    def watch(self, readable: Callable[[], object] | None) -> bool:
        """Call back while a line waits; None: no longer."""
        was_watched, self._readable = self._readable is not None, readable
        self._tell()
        return was_watched

    def take(self, line: AgentEnd) -> None:
        """The kernel has a line for the process."""
        if self._factory is not None:
            self._network.loop.after(0, self.process, line.open, self._factory)
        else:
            self._backlog.append(line)
            self._tell()

    def accept(self) -> tuple[AgentEnd, tuple[str, int]]:
        if not self._backlog:
            raise BlockingIOError
        return self._backlog.popleft(), ("", 0)

    def close(self) -> None:
        self._network.close_listener(self)
        for line in self._backlog:
            line.cut()
        self._backlog.clear()

    async def wait_closed(self) -> None:
        return None

    def _tell(self) -> None:
        if self._backlog and self._readable is not None:
            self._network.loop.after(0, self.process, self._call)

    def _call(self) -> None:
        if self._backlog and self._readable is not None:
            self._readable()
            self._tell()


class Pipe:
    """One direction: items arrive in order, in the receiver's process."""

    def __init__(self, network: Network, receiver: Process, take: Callable[[Any], None]) -> None:
        self._network = network
        self._receiver = receiver
        self._take = take
        self._items: deque[object] = deque()
        self._last_ms = 0.0

    def send(self, item: object) -> None:
        loop = self._network.loop
        self._last_ms = max(self._last_ms, loop.now_ms + self._network.latency_ms())
        self._items.append(item)
        loop.after(self._last_ms - loop.now_ms, self._receiver, self._arrive)

    def cut(self, *, delivers: bool) -> None:
        if not delivers:
            self._items.clear()
        self.send(_LOST)

    def _arrive(self) -> None:
        if self._items:
            self._take(self._items.popleft())


class AgentEnd(asyncio.Transport):
    """The transport that a `Connection` sees. Writing pauses above a bound, as with a peer that does not read."""

    def __init__(self, network: Network, process: Process, client: ClientEnd) -> None:
        super().__init__({"peername": (client.name, 0)})
        self.process = process
        self.client_process = client.process
        self._network = network
        self._client = client
        self._protocol: Any = None
        self._outgoing = Pipe(network, client.process, client.take)
        self.incoming = Pipe(network, process, self._take)
        self._waiting: deque[object] = deque()
        self._reading_paused = False
        self._writing_paused = False
        self._unread_bytes = 0
        self._is_closing = False
        self._is_lost = False

    # ---- for the network and the client

    def open(self, factory: Callable[[], asyncio.BufferedProtocol]) -> None:
        self._protocol = factory()
        self._protocol.connection_made(self)
        if self._client.principal:
            self._protocol.client.principal = self._client.principal
        self._go_on()

    def cut(self) -> None:
        """Called from outside: both sides learn of it, with or without the bytes on their way."""
        self.incoming.cut(delivers=self._network.faults.rng.random() < 0.5)
        self._outgoing.cut(delivers=self._network.faults.rng.random() < 0.5)

    def read_by_client(self, count: int) -> None:
        self._unread_bytes -= count
        if self._writing_paused and self._unread_bytes <= self._network.write_high_bytes // 4:
            self._writing_paused = False
            self._network.loop.after(0, self.process, self._resume_writing)
        if self._is_closing and not self._unread_bytes:
            self._network.loop.after(0, self.process, self._lose, None)

    def client_went(self) -> None:
        """Unread bytes are lost with it."""
        self._network.loop.after(0, self.process, self._drop_unread)

    # ---- asyncio.Transport

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """The network's own, lower bound applies."""

    def is_closing(self) -> bool:
        return self._is_closing or self._is_lost

    def pause_reading(self) -> None:
        self._reading_paused = True

    def resume_reading(self) -> None:
        self._reading_paused = False
        asyncio.get_running_loop().call_soon(self._go_on)

    def write(self, data: Octets) -> None:
        self.writelines([data])

    def writelines(self, list_of_data: Iterable[Octets]) -> None:
        data = b"".join(list_of_data)
        if self.is_closing() or not data:
            return
        self._unread_bytes += len(data)
        self._outgoing.send(data)
        if self._unread_bytes > self._network.write_high_bytes and not self._writing_paused:
            self._writing_paused = True
            self._network.faults.count(Path.WRITING_PAUSED)
            self._protocol.pause_writing()

    def close(self) -> None:
        if not self.is_closing():
            self._is_closing = True
            self._outgoing.send(_END)
            if not self._unread_bytes:
                asyncio.get_running_loop().call_soon(self._lose, None)

    def abort(self) -> None:
        if not self._is_lost:
            self._is_closing = True
            self._outgoing.cut(delivers=False)
            asyncio.get_running_loop().call_soon(self._lose, None)

    # ---- inner, in the agent's process

    def _take(self, item: object) -> None:
        self._waiting.append(item)
        self._go_on()

    def _go_on(self) -> None:
        while self._waiting and self._protocol is not None and not self._reading_paused and not self.is_closing():
            item = self._waiting.popleft()
            if item is _LOST:
                self._lose(ConnectionResetError("the line was cut"))
            elif item is _END:
                if not self._protocol.eof_received():
                    self.close()
            elif isinstance(item, bytes):
                self._feed(item)
        # Whether or not the connection is being read, it learns that its line is gone.
        if _LOST in self._waiting and self._protocol is not None:
            self._waiting.clear()
            self._lose(ConnectionResetError("the line was cut"))

    def _feed(self, data: bytes) -> None:
        room: memoryview = self._protocol.get_buffer(-1)
        taken = min(len(room), len(data), 1 + int(self._network.faults.rng.random() * self._network.piece_bytes_max))
        room[:taken] = data[:taken]
        if taken < len(data):
            self._waiting.appendleft(data[taken:])
        self._protocol.buffer_updated(taken)

    def _drop_unread(self) -> None:
        self._unread_bytes = 0
        if self._protocol is not None and (self._is_closing or self._writing_paused):
            self._lose(None if self._is_closing else BrokenPipeError("the client has gone"))

    def _resume_writing(self) -> None:
        if not self._is_lost:
            self._protocol.resume_writing()

    def _lose(self, error: Exception | None) -> None:
        if not self._is_lost:
            self._is_lost = True
            self._network.forget(self)
            self._protocol.connection_lost(error)


class ClientEnd:
    """The client's side: bytes in by `on_data`, and `on_lost` once."""

    def __init__(
        self,
        process: Process,
        name: str,
        *,
        principal: str = "",
        on_data: Callable[[bytes], None],
        on_lost: Callable[[], None],
    ) -> None:
        self.process = process
        self.name = name
        self.principal = principal
        self.line: AgentEnd | None = None
        self._on_data = on_data
        self._on_lost = on_lost
        self._is_over = False

    def send(self, network: Network, data: bytes) -> None:
        if self._is_over or self.line is None:
            return
        if network.faults.strikes(Fault.CUT_BEFORE):
            self.line.incoming.cut(delivers=False)
            self.lose()
            return
        self.line.incoming.send(data)
        if network.faults.strikes(Fault.CUT_AFTER):
            network.loop.after(network.faults.between(0, 400), network.loop.outside, self.line.cut)

    def take(self, item: object) -> None:
        if self._is_over:
            return
        if isinstance(item, bytes):
            if self.line is not None:
                self.line.read_by_client(len(item))
            self._on_data(item)
        else:
            if item is _END and self.line is not None:
                self.line.incoming.send(_END)
            self.lose()

    def close(self) -> None:
        """Close in good order; later answers are dropped."""
        if not self._is_over and self.line is not None:
            self._is_over = True
            self.line.incoming.send(_END)
            self.line.client_went()

    def lose(self) -> None:
        if not self._is_over:
            self._is_over = True
            if self.line is not None:
                self.line.client_went()
            self._on_lost()


class DialledTransport(asyncio.Transport):
    """An agent's side of a line to a neighbour: the transport that its protocol sees."""

    def __init__(self, network: Network, process: Process, protocol: asyncio.BufferedProtocol) -> None:
        super().__init__()
        self._network = network
        self._protocol = protocol
        self._is_over = False
        self._is_closing = False
        self.end = ClientEnd(process, process.name, on_data=self._feed, on_lost=self._lose)

    def open(self) -> None:
        self._protocol.connection_made(self)

    def is_closing(self) -> bool:
        return self._is_closing or self._is_over

    def write(self, data: Octets) -> None:
        self.end.send(self._network, bytes(data))

    def abort(self) -> None:
        self._is_closing = True  # a real transport reads no more
        self.end.close()
        asyncio.get_running_loop().call_soon(self._lose)

    def _feed(self, data: bytes) -> None:
        while data and not self.is_closing():
            room: Any = self._protocol.get_buffer(-1)
            taken = min(len(room), len(data))
            room[:taken] = data[:taken]
            self._protocol.buffer_updated(taken)
            data = data[taken:]

    def _lose(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._protocol.connection_lost(None)
