"""A client that keeps lines to the coordinators of its transactional id and of its groups, and repeats requests as real
clients do: the same request again, until the answer is no error of the moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tests.simulation.clients import Client, Line, LineLostError
from tests.simulation.faults import Fault
from wire.error_codes import ErrorCode
from wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from wire.schema import Message

Response = TypeVar("Response", bound=Message)
GROUP, TRANSACTION = 0, 1

_ELSEWHERE = {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE}
RETRIABLE = {
    *_ELSEWHERE,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.UNSUPPORTED_VERSION,
}
"""UNSUPPORTED_VERSION: the agent does not know yet that transactions may be used."""


class Asking(Client):
    """Its lines, by the kind and name of the coordinator."""

    def __init__(self, *args: object, **named: object) -> None:
        super().__init__(*args, **named)  # type: ignore[arg-type]
        self._lines: dict[tuple[int, str], Line] = {}
        self.lost = 0
        """Requests to coordinators whose answers were lost. They may be carried out late."""
        self.copies = 0
        """Requests that were sent a second time though nothing was lost."""

    async def ask(
        self,
        kind: int,
        key: str,
        request: Message,
        response: type[Response],
        error_of: Callable[[Response], int],
        *,
        copies: bool = False,
        twice: bool = False,
    ) -> Response:
        """The first answer that is no error of the moment. `copies`: a second request may be sent, now or later.
        `twice`: it is."""
        if twice or (copies and self.world.faults.strikes(Fault.DUPLICATED)):
            self.copies += 1
            self.world.start_copy(self.process, self._send_copy(kind, key, request, response))
        while True:
            answer = await self.try_once(kind, key, request, response)
            if answer is not None:
                error = ErrorCode(error_of(answer))
                if error not in RETRIABLE:
                    return answer
                if error in _ELSEWHERE:
                    self._hang_up(kind, key)
            await self.pause(5, 120)

    async def try_once(self, kind: int, key: str, request: Message, response: type[Response]) -> Response | None:
        """None: no answer."""
        line = self._lines.get((kind, key))
        try:
            if line is None or line.is_lost:
                line = self._lines[kind, key] = await self._find(kind, key)
            return await line.call(request, response)
        except LineLostError:
            self.lost += 1
            self._hang_up(kind, key)
            return None

    async def try_alone(self, kind: int, key: str, request: Message, response: type[Response]) -> Response | None:
        """The same by a line of its own."""
        try:
            line = await self._find(kind, key)
            try:
                return await line.call(request, response)
            finally:
                line.close()
        except LineLostError:
            return None

    def hang_up_all(self) -> None:
        for kind, key in list(self._lines):
            self._hang_up(kind, key)

    # ---- inner

    def _hang_up(self, kind: int, key: str) -> None:
        line = self._lines.pop((kind, key), None)
        if line is not None:
            line.close()

    async def _find(self, kind: int, key: str) -> Line:
        """Raises LineLostError."""
        line = await self.dial()
        try:
            found = await line.call(FindCoordinatorRequest(key=key, key_type=kind), FindCoordinatorResponse)
        finally:
            line.close()
        if found.error_code:
            if ErrorCode(found.error_code) not in RETRIABLE:
                self.world.violation(f"{self.name} asked for the coordinator of {key} and got {found.error_code}")
            raise LineLostError("no coordinator")
        line = Line(self.world, self, f"{found.host}:{found.port}")
        await line.open()
        return line

    async def _send_copy(self, kind: int, key: str, request: Message, response: type[Response]) -> None:
        """The same request once more, from another line: at about the same time, or when the client has gone on."""
        await self.pause(0, self.rng.choice((40, 900)))
        try:
            line = await self._find(kind, key)
            await line.call(request, response)
        except LineLostError:
            return
        line.close()
