"""One client connection: frames in, answers out in the order of the requests.

Requests begin in order. Many Produce requests may wait at a time; any other request holds the connection until it is
answered (see `dispatch.py`). All answers that are complete at the head of the line are written in one go, and answers
that become complete in the same turn of the event loop share that write. On a plain socket the kernel gathers them from
their places in memory (writev); only the part that it does not take at once is copied, a little at a time.

Reading stops at a bound: too many unanswered requests, a client that does not read its answers, or (only for
connections that have sent Produce) a full write path, so that a slow object store never holds up fetches and
heartbeats. A peer that sends something wrong loses its own connection and no other.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar, cast

from agents.answers import HeldAnswer, Slot, end_trace
from agents.connections.long_messages import Decoded, begin_decoding
from agents.connections.owner import ConnectionOwner
from agents.connections.protocol_errors import reason_of
from agents.connections.sending import SendingHalf
from agents.dispatch import HANDLERS, PRODUCE, Answer
from agents.draining import ASKING_APIS, TELLING_APIS, Talk
from agents.handlers import api_versions
from agents.handlers.produce import DropConnectionError
from agents.listeners.activity import Activity
from agents.listeners.listening import Listening
from agents.request_context import ClientConnection, RequestContext, RequestTrace, about_group, error_of, tell_slow
from agents.security.gate import Gate, is_held
from agents.security.session import Reply
from runtime.errors import SiltstoneError
from runtime.logging import LOG_CONTEXT, get_logger, log_context
from runtime.tracing import CURRENT_SPAN
from wire.api import (
    API_VERSIONS,
    RequestHeader,
    UnsupportedVersionError,
    encode_response,
    encode_short_response,
    read_request_header,
)
from wire.errors import MalformedFrameError
from wire.framing import FrameReader
from wire.schema import Message, Octets

_log = get_logger(__name__)

T = TypeVar("T")

REQUESTS_MAX = 1_000
"""Unanswered requests of one connection. Only a client that sends without acknowledgement (acks=0) has so many in
flight; above this bound the connection is not read until an answer has left."""
LARGE_FRAME_BYTES = 16 << 10
"""A connection with a larger partial frame may have to wait."""
READ_BYTES_WHEN_FULL = 64 << 10
"""Bytes that a connection may still read, once, after the bound over all connections is reached."""


def _is_produce(frame: memoryview) -> bool:
    """Looks at the API key, the first field of every request."""
    return bytes(frame[:2]) == PRODUCE.to_bytes(2, "big")


class Connection(SendingHalf):
    def __init__(self, server: ConnectionOwner[Connection], listening: Listening) -> None:
        super().__init__()
        self._server, self._listening = server, listening
        self._broker = server.broker
        self._reader = FrameReader(server.broker.settings.socket_request_max_bytes, server.landing)
        self._frames: deque[memoryview] = deque()
        self._frames_bytes = 0
        self._waiting: set[asyncio.Future[Any]] = set()
        self._gate: Gate | None = None
        self.client = ClientConnection(0, "?", listening.name)
        self.told_peer: tuple[str, int] | None = None
        """Where the client is, by the word of a load balancer that is trusted; to be set before `connection_made`."""
        self._slow_ms = server.broker.settings.log_slow_request_ms or float("inf")
        self._exclusive = 0
        """The pieces of work that no other request may begin beside."""
        self._is_decoding = False
        """The last request in line is a long one, and has not begun."""
        self._decoded: Decoded | None = None
        """This one, once it may begin."""
        self._write_paused_ms = 0.0
        self._read_paused = False
        self._ended = False
        self._has_asked = self._works = self._is_told = False
        self.sends_produce = False
        self.activity = Activity(server.broker.runtime.clock.monotonic_ms())

    # ---- asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = self.told_peer or transport.get_extra_info("peername")
        name = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer)
        self.client = ClientConnection(self._server.next_connection(), name, self._listening.name)
        self.client.produce_line.on_empty = self.client.mute.on_end = self._pump_soon
        sock = cast(socket.socket | None, transport.get_extra_info("socket"))
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if transport.get_extra_info("sslcontext") is None:
                self._descriptor = sock.fileno()
        # With this limit, "not paused" means that the transport holds nothing of ours. Only then does a write past it
        # keep the order.
        self._transport.set_write_buffer_limits(high=0)
        if not self._server.admit(self):
            self._end("too many connections")
        self._gate = self._server.gate(self.client)
        if self._gate is not None:
            self._reader.frame_bytes_max = self._gate.frame_bytes_max

    def get_buffer(self, sizehint: int) -> memoryview:
        room = self._reader.get_buffer()
        # Above the shared bound even the connection that may go on reads in small steps, so that the bound holds.
        return room[:READ_BYTES_WHEN_FULL] if self._server.requests_are_full else room

    def buffer_updated(self, nbytes: int) -> None:
        if self._ended:
            return None
        self.activity.last_bytes_ms = self._broker.runtime.clock.monotonic_ms()
        try:
            frames = self._reader.buffer_updated(nbytes)
        except MalformedFrameError as error:
            return self._protocol_error(error)
        if frames:
            self._frames += frames
            self._frames_bytes += sum(map(len, frames))
            self.activity.requests_came()
            self.pump()
            return None
        self.activity.part_came(self._reader.buffered_bytes)
        if self.sends_produce:
            self.client.sender.arriving(self.activity.last_bytes_ms)
        self._server.holds(self, self.held_bytes)
        if self._server.requests_are_full:
            self.update_reading()
        return None

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._write_paused = True
        self._write_paused_ms = self._broker.runtime.clock.monotonic_ms()
        self.update_reading()

    def resume_writing(self) -> None:
        self._write_paused = False
        # Not at once: the transport is in the middle of its own writing.
        self._pump_soon()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = True
        for waiting in list(self._waiting):
            waiting.cancel()  # ends the traces of their requests too
        self._frames.clear()
        self._decoded = None
        self.client.mute.close()
        self._drop_answers()
        self._server.lost(self)

    # ---- for the server

    @property
    def held_bytes(self) -> int:
        """Bytes of requests that have not begun: whole frames in line and the frame that is arriving."""
        return self._reader.buffered_bytes + self._frames_bytes

    @property
    def has_large_partial_frame(self) -> bool:
        return self._reader.buffered_bytes > LARGE_FRAME_BYTES

    @property
    def produces_waiting(self) -> bool:
        return self.sends_produce and (len(self._slots) > self._is_decoding or bool(self._unsent)) and not self._ended

    @property
    def is_sending(self) -> bool:
        """Some complete answers have not been handed to the socket yet."""
        return bool(self._unsent) and not self._ended

    def has_stalled(self, since_ms: float) -> bool:
        """The client has taken next to nothing of its answers since then."""
        return self._write_paused and self._write_paused_ms < since_ms

    @property
    def waits_for_us(self) -> bool:
        """It has sent a request that may not begin, or is told to wait in the middle of one."""
        return bool(self._frames) or self._is_decoding or self._read_paused

    def is_idle(self, since_ms: float) -> bool:
        """Nothing is under way, and no request has come or gone forward since then, although we read."""
        return (
            self.activity.is_silent(since_ms)
            and not (self._slots or self._unsent or self._frames or self._read_paused or self._write_paused)
            and not self._ended
        )

    def talk(self, now_ms: float) -> Talk:
        return Talk(
            is_busy=bool(self._slots or self._unsent or self._frames or self._reader.buffered_bytes),
            silent_ms=now_ms - self.activity.talked_ms,
            has_asked=self._has_asked,
            works=self._works,
            is_told=self._is_told,
        )

    def pump(self) -> None:
        """Begin the requests that may begin, write the complete answers, and read on if there is room."""
        # Answers first: each one that leaves makes room for a waiting request.
        self._flush()
        if self._decoded is not None:
            self._begin_decoded(self._decoded)
        while self._frames:
            # Read for each: a pause of the process may lie between two.
            now_ms = self._broker.runtime.clock.monotonic_ms()
            if not self._may_begin(now_ms):
                break
            frame = self._frames.popleft()
            self._frames_bytes -= len(frame)
            self._begin(frame, now_ms)
        if not self._ended:
            self._server.holds(self, self.held_bytes)
            # If it is due again, this turn is over.
            if not self._pump_due:
                self._flush()
            self.update_reading()

    def update_reading(self) -> None:
        if self._transport is None or self._ended or self._transport.is_closing():
            return
        full = (
            self._write_paused
            or bool(self._frames)  # begin these first
            or self._server.draining
            # A frame that is half here may hold up others.
            or (self.client.mute.on and not self.has_large_partial_frame)
            or (self.sends_produce and self._server.produce_is_full)
            or self._server.must_wait(self)  # another one finishes first
        )
        if full and not self._read_paused:
            self._read_paused = True
            self._transport.pause_reading()
        elif not full and self._read_paused:
            self._read_paused = False
            self.activity.resumed(self._broker.runtime.clock.monotonic_ms())
            self._transport.resume_reading()

    def close(self, reason: str) -> None:
        self._end(reason)

    def close_if_user_changed(self) -> None:
        if self._gate is not None and not self._gate.still_holds:
            self._end("the user was deleted or altered")

    def abort(self) -> None:
        """Cut the connection without waiting for the client to read the rest."""
        if self._transport is not None:
            self._transport.abort()

    # ---- requests

    def _may_begin(self, now_ms: float) -> bool:
        return not (
            self._ended
            or self._exclusive > 0
            or not self.client.produce_line.is_empty
            or self.client.mute.on
            or self._write_paused
            or bool(self._unsent)
            or self._server.draining
            or len(self._slots) >= REQUESTS_MAX
            # Look at the frame too: otherwise the first Produce of every connection would come in above the bound.
            or (self._server.produce_is_full and (self.sends_produce or _is_produce(self._frames[0])))
            or is_held(self._frames[0], self.client, self._gate, self._broker.freshness, now_ms)
        )

    def _begin(self, frame: memoryview, now_ms: float) -> None:
        slot = Slot(now_ms)
        self._slots.append(slot)
        if self._gate is not None and not self._gate.admits(frame):
            return self._prove(slot, self._gate.receive(frame))
        try:
            header, position = read_request_header(frame)
            request = begin_decoding(header, frame, position)
        except UnsupportedVersionError as error:
            if error.header.api_key == API_VERSIONS:
                slot.parts = encode_response(error.header, api_versions.unsupported())
                return self._server.proved(self)
            return self._protocol_error(error)
        except SiltstoneError as error:
            return self._protocol_error(error)
        if isinstance(request, Message):
            return self._carry_out(slot, header, len(frame), request)
        self._is_decoding = True
        self._frames_bytes += len(frame)  # held until the request begins
        decoding = self._server.long_messages.finish(request, self.client)
        return self._wait_for(decoding, partial(self._long_decoded, slot, header, frame))

    def _long_decoded(
        self, slot: Slot, header: RequestHeader, frame: memoryview, decoded: asyncio.Future[Message]
    ) -> None:
        self._waiting.discard(decoded)
        if decoded.cancelled() or self._ended:
            self._frames_bytes -= len(frame)
            return None
        try:
            self._decoded = Decoded(slot, header, frame, decoded.result())
        except SiltstoneError as error:
            return self._protocol_error(error)
        return self._pump_soon()

    def _begin_decoded(self, decoded: Decoded) -> None:
        """That took a while: meanwhile the agent may stop, rights be unknown, or the client's proof have expired."""
        slot, header, frame, request = decoded
        now_ms, freshness = self._broker.runtime.clock.monotonic_ms(), self._broker.freshness
        if self._ended or self._server.draining or is_held(frame, self.client, self._gate, freshness, now_ms):
            return None
        self._decoded, self._is_decoding = None, False
        self._frames_bytes -= len(frame)
        self._exclusive -= 1
        if self._gate is not None and not self._gate.admits(frame):
            return self._prove(slot, self._gate.receive(frame))
        return self._carry_out(slot, header, len(frame), request)

    def _carry_out(self, slot: Slot, header: RequestHeader, frame_bytes: int, request: Message) -> None:
        if not self._has_asked:
            self._server.proved(self)
        self.sends_produce = self.sends_produce or header.api_key == PRODUCE
        self.activity.talked_ms, self._has_asked = slot.started_ms, True
        self._works = self._works or header.api_key not in ASKING_APIS
        if self._broker.draining.sends_away:
            self._is_told = self._is_told or header.api_key in TELLING_APIS
        context = RequestContext(header, self.client, frame_bytes)
        # Reset below: this code may run inside another request's work, which keeps its own context.
        before = LOG_CONTEXT.set(context)
        try:
            if self._broker.runtime.tracing.on:
                return self._handle_traced(slot, context, request)
            return self._handle(slot, context, request)
        finally:
            LOG_CONTEXT.reset(before)

    def _prove(self, slot: Slot, reply: Reply | Awaitable[Reply]) -> None:
        """A message by which the client proves who it is. Nothing else begins before its reply."""
        if isinstance(reply, Reply):
            slot.parts, slot.ends = reply.parts, reply.ends
            self._exclusive += bool(reply.ends)  # what came behind it at once is not judged, nor counted
            if self._gate is not None and reply.is_refusal and reply.parts:
                slot.ends = ""
                self._waiting.add(asyncio.ensure_future(self._gate.end_refused(self._end, reply.ends)))
            elif self._gate is not None and self._gate.is_open:
                self._server.proved(self)
                self._reader.frame_bytes_max = self._broker.settings.socket_request_max_bytes
        else:
            self._wait_for(reply, partial(self._proof_settled, slot))

    def _proof_settled(self, slot: Slot, reply: asyncio.Future[Reply]) -> None:
        self._waiting.discard(reply)
        if not reply.cancelled():
            self._exclusive -= 1
            self._prove(slot, reply.result())
            self._pump_soon()

    def _handle(self, slot: Slot, context: RequestContext, request: Message) -> None:
        handler = HANDLERS[context.header.api_key]
        try:
            if self._broker.throttle.on:
                answer = self._broker.throttle.handle(handler.handle, self._broker, context, request)
            else:
                answer = handler.handle(self._broker, context.header, request)
            if isinstance(answer, Message | HeldAnswer) or answer is None:
                return self._answer(slot, context, answer)
        except Exception as error:
            return self._failed(context, error)
        return self._wait_for(answer, partial(self._settled, slot, context), pipelined=handler.pipelined)

    def _wait_for(
        self, work: Awaitable[T], then: Callable[[asyncio.Future[T]], object], *, pipelined: bool = False
    ) -> None:
        """Unless `pipelined`, no other request begins until `then` says so."""
        self._exclusive += not pipelined
        waiting = asyncio.ensure_future(work)
        self._waiting.add(waiting)
        waiting.add_done_callback(then)

    def _handle_traced(self, slot: Slot, context: RequestContext, request: Message) -> None:
        """Runs for requests that are not sampled too: their work must not count as part of another request's span."""
        before = CURRENT_SPAN.set(None)
        try:
            tracing = self._broker.runtime.tracing
            if tracing.samples():
                ago_ms = self._broker.runtime.clock.monotonic_ms() - slot.started_ms
                node_id = self._broker.membership.node_id
                trace = context.trace = RequestTrace(tracing, context, node_id=node_id, ago_ms=ago_ms)
                trace.span.set(about_group(request))
                CURRENT_SPAN.set(trace.span)
            self._handle(slot, context, request)
        finally:
            CURRENT_SPAN.reset(before)

    def _failed(self, context: RequestContext, error: Exception) -> None:
        """A failure of our own. Call it where the error is caught."""
        with log_context(context):
            _log.exception("request failed")
        if context.trace is not None:
            context.trace.end(error=type(error).__qualname__)
        self._end("internal error")

    def _settled(self, slot: Slot, context: RequestContext, answer: asyncio.Future[Answer]) -> None:
        """A request that had to wait has its answer."""
        self._waiting.discard(answer)
        if answer.cancelled():
            if context.trace is not None:
                context.trace.end(error="connection lost")
            return None
        if not HANDLERS[context.header.api_key].pipelined:
            self._exclusive -= 1
        try:
            self._answer(slot, context, answer.result())
        except DropConnectionError:
            slot.ends, slot.parts = "a produce request without acks was refused", ()
            if context.trace is not None:
                context.trace.end(error="refused without acks")
        except Exception as error:
            return self._failed(context, error)
        # Not at once: one commit answers many requests, and their answers leave together.
        self._pump_soon()
        return None

    def _answer(self, slot: Slot, context: RequestContext, answer: Answer) -> None:
        if isinstance(answer, HeldAnswer):
            slot.release = answer.release
            answer = answer.message
        throttle = self._broker.throttle
        if throttle.on:
            parts = throttle.encode(context, answer)
        else:
            parts = () if answer is None else encode_short_response(context.header, answer)
        if parts is None and answer is not None and not self._ended:
            encoding = self._server.long_messages.encode(throttle, context, answer)
            return self._wait_for(encoding, partial(self._long_encoded, slot, context, answer))
        return self._encoded(slot, context, answer, parts or ())

    def _long_encoded(
        self, slot: Slot, context: RequestContext, answer: Message, encoded: asyncio.Future[Sequence[Octets]]
    ) -> None:
        self._waiting.discard(encoded)
        self._exclusive -= 1
        if encoded.cancelled():
            if context.trace is not None:
                context.trace.end(error="connection lost")
            return None
        try:
            self._encoded(slot, context, answer, encoded.result())
        except Exception as error:
            return self._failed(context, error)
        return self._pump_soon()

    def _encoded(self, slot: Slot, context: RequestContext, answer: Message | None, parts: Sequence[Octets]) -> None:
        slot.parts = parts
        if context.trace is not None:
            context.trace.begin("answer")
            slot.release = partial(end_trace, context.trace, error_of(answer), slot.release)
        if self._ended and slot.release is not None:  # no client takes it any more
            slot.release()
        self.activity.talked_ms = self._broker.runtime.clock.monotonic_ms()
        elapsed_ms = self.activity.talked_ms - slot.started_ms
        self._server.count(context.header.api_key, elapsed_ms / 1000)
        if elapsed_ms - context.waited_ms > self._slow_ms:
            tell_slow(context, answer, elapsed_ms)

    # ---- ends

    def _protocol_error(self, error: SiltstoneError) -> None:
        self._broker.runtime.metrics.protocol_errors_total.labels(reason=reason_of(error)).inc()
        with log_context(self.client):
            _log.warning("connection closed, protocol error", error=str(error))
        # Complete answers were earned by good requests; send them before the connection is cut.
        self._flush(float("inf"))
        self._end("protocol error")

    def _end(self, reason: str) -> None:
        if self._ended:
            return
        self._ended = True
        if self._broker.draining.sends_away and self._works and not self._is_told:
            self._broker.draining.owes = True
        with log_context(self.client):
            _log.debug("connection closed", reason=reason)
        if self._transport is not None:
            self._transport.close()
