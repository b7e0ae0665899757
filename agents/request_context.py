"""The request that is being worked on: the facts that name it in a log line, and its trace if it has one.

A connection sets it (as `LOG_CONTEXT`) while it calls a handler, and resets it afterwards. Tasks that the handler
starts keep it; nothing else gets it. One is made for every request, so it holds references and formats nothing.

A trace is one span for the request, from its frame to the moment the kernel has its answer. Below it is one span for
each step of the request, one after the other. A request that is not traced has no `RequestTrace` at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from agents.quotas.meter import Meter
from agents.quotas.mute import Mute
from agents.security.rights import JudgedRights
from agents.sender import Sender
from agents.write.walks import ProduceLine
from runtime.logging import LOG_CONTEXT, get_logger, log_context
from runtime.settings.listeners import DEFAULT_LISTENER
from runtime.tracing import Span, SpanKind, Tracing
from wire.api import APIS, RequestHeader
from wire.error_codes import ErrorCode
from wire.schema import Message

_log = get_logger(__name__)

OPERATION_TYPES = {"Produce": "send", "Fetch": "receive", "OffsetCommit": "settle"}
"""`messaging.operation.type`, where the semantic conventions have one."""
PARTITIONS_SHOWN_MAX = 20
ANONYMOUS = "User:ANONYMOUS"
"""Kafka's principal of a client that proves nothing."""


class ClientConnection:
    """The client at the other end of a connection."""

    __slots__ = (
        "has_password",
        "host",
        "listener",
        "mute",
        "number",
        "peer",
        "principal",
        "produce_line",
        "rights",
        "sender",
        "software",
        "was_sent_away",
    )

    def __init__(self, number: int, peer: str, listener: str = DEFAULT_LISTENER) -> None:
        """`number` counts the connections of this process; `peer` is HOST:PORT."""
        self.number = number
        self.peer = peer
        self.host = peer.rpartition(":")[0]
        self.listener = listener
        """The name of the listener that took the connection."""
        self.principal = ANONYMOUS
        """The principal that the client has proved to be, as `User:ann`."""
        self.has_password = False
        """The proof was a password of a user in the metadata store: it counts no more when the user is deleted."""
        self.mute = Mute()
        """On while the client is over a quota."""
        self.rights: JudgedRights | None = None
        """Kept by the authorizer, as long as the ACLs stay the same."""
        self.produce_line = ProduceLine()
        self.sender = Sender()
        self.software = ""
        """The client library's own name (KIP-511); empty if it did not say."""
        self.was_sent_away = False
        """A fetch was refused because this agent stops."""

    @property
    def user(self) -> str:
        """The name that quotas know the client by."""
        return self.principal.removeprefix("User:")

    def log_facts(self) -> Mapping[str, Any]:
        return {"connection": self.number, "peer": self.peer}


class RequestContext:
    """A `runtime.logging.LogContext`."""

    __slots__ = ("client", "file_key", "header", "meter", "request_bytes", "trace", "waited_ms")

    def __init__(self, header: RequestHeader, client: ClientConnection, request_bytes: int = 0) -> None:
        self.header = header
        self.client = client
        self.request_bytes = request_bytes
        self.meter: Meter | None = None
        """Only where a quota counts the time that a request takes."""
        self.waited_ms = 0.0
        """Time that the client itself wanted to wait: for records to come, or for the other members of its group."""
        self.file_key = ""
        """The L0 file that carries its records; the last one of several."""
        self.trace: RequestTrace | None = None

    @property
    def api(self) -> str:
        return APIS[self.header.api_key].name

    @property
    def name(self) -> str:
        """Short and unique within a process, for lists of requests."""
        return f"{self.client.number}:{self.header.correlation_id}"

    def log_facts(self) -> Mapping[str, Any]:
        header, client = self.header, self.client
        return {
            "api": self.api,
            "client_id": header.client_id,
            "correlation_id": header.correlation_id,
            "connection": client.number,
            "peer": client.peer,
        }


def current_request() -> RequestContext | None:
    """None outside of a request: in the agent's own loops, and in tests that call one part alone."""
    context = LOG_CONTEXT.get()
    return context if isinstance(context, RequestContext) else None


def client_host() -> str:
    """The client's host without its port; "" if it is not known."""
    request = current_request()
    return "" if request is None else request.client.host


def client_principal() -> str:
    """The principal that asks, for the audit log; "" outside of a request."""
    request = current_request()
    return "" if request is None else request.client.principal


def client_listener() -> str:
    """The name of the listener by which the client came."""
    request = current_request()
    return DEFAULT_LISTENER if request is None else request.client.listener


class RequestTrace:
    """The span of a request, and the step of it that is under way."""

    __slots__ = ("_api", "_part", "span")

    def __init__(self, tracing: Tracing, request: RequestContext, *, node_id: int, ago_ms: float) -> None:
        self._api = request.api
        header = request.header
        host, _, port = request.client.peer.rpartition(":")
        self.span = tracing.start(
            self._api,
            kind=SpanKind.SERVER,
            ago_ms=ago_ms,
            attributes={
                "messaging.system": "kafka",
                "messaging.operation.name": self._api,
                **({"messaging.operation.type": kind} if (kind := OPERATION_TYPES.get(self._api)) else {}),
                **({"messaging.client.id": header.client_id} if header.client_id else {}),
                **({"client.address": host, "client.port": int(port)} if port.isdigit() else {}),
                "siltstone.node.id": node_id,
                "siltstone.connection": request.client.number,
                "siltstone.correlation.id": header.correlation_id,
                "siltstone.api.version": header.api_version,
            },
        )
        self._part: Span | None = self.span.child("read", ago_ms=ago_ms)

    def begin(self, part: str) -> None:
        """End the step before and begin the next."""
        self.end_part()
        self._part = self.span.child(part)

    def end_part(self) -> None:
        if self._part is not None:
            self._part.end()
            self._part = None

    def about(self, places: Iterable[tuple[str | None, int]], *, records: int | None = None) -> None:
        """The request's (topic, partition) pairs; None for a topic that is not known."""
        known = [(topic, partition) for topic, partition in places if topic is not None]
        topics = {topic for topic, _ in known}
        if len(topics) == 1:
            topic = topics.pop()
            self.span.rename(f"{self._api} {topic}")
            self.span.set({"messaging.destination.name": topic})
        if len(known) == 1:
            self.span.set({"messaging.destination.partition.id": str(known[0][1])})
        else:
            shown = [f"{topic}-{partition}" for topic, partition in known[:PARTITIONS_SHOWN_MAX]]
            self.span.set({"siltstone.partitions": shown, "siltstone.partitions.count": len(known)})
        if records is not None:
            self.span.set({"messaging.batch.message_count": records})

    def end(self, *, error: str = "") -> None:
        self.end_part()
        self.span.end(error=error)


def about_group(request: Message) -> Mapping[str, str]:
    """Span attributes for requests about one group."""
    group_id = getattr(request, "group_id", None)
    return {"messaging.consumer.group.name": group_id} if isinstance(group_id, str) and group_id else {}


def error_of(answer: Message | None) -> str:
    """The name of the first error in an answer, found by a search through all of it; "" if there is none."""
    code = 0 if answer is None else _first_error(answer)
    if not code:
        return ""
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)


def _first_error(value: object, depth: int = 0) -> int:
    code = getattr(value, "error_code", 0)
    # No answer nests its errors deeper.
    if code or depth == 3:
        return code
    for name in _LISTS:
        parts: object = getattr(value, name, None)
        if not isinstance(parts, list):  # Metadata's topics stand there encoded (`wire.schema.EncodedElements`)
            continue
        for part in cast("list[object]", parts):
            if code := _first_error(part, depth + 1):
                return code
    return 0


_LISTS = ("responses", "partition_responses", "topics", "partitions")
"""The fields in which answers keep the answers of their parts."""


def tell_slow(context: RequestContext, answer: Message | None, elapsed_ms: float) -> None:
    with log_context(context):
        _log.info(
            "slow request",
            elapsed_ms=round(elapsed_ms),
            waited_ms=round(context.waited_ms),
            api_version=context.header.api_version,
            **({"key": context.file_key} if context.file_key else {}),
            **({"error": error} if (error := error_of(answer)) else {}),
        )
