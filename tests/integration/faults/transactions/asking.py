"""Requests over Kafka's protocol that are repeated until they are answered: at any agent, or at a coordinator.

Agents that are dead, frozen or cut off do not answer; then another is asked. A request that nobody answers in
`PATIENCE_S` is a finding: no fault lasts so long.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from runtime.errors import SiltstoneError
from siltstone.kafka.client import KafkaClient
from wire.error_codes import ErrorCode
from wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from wire.schema import Message

Response = TypeVar("Response", bound=Message)
GROUP, TRANSACTION = 0, 1
ANSWER_MS = 2_500
"""An agent is given this long before another is asked."""
PAUSE_S = (0.02, 0.25)
PATIENCE_S = 120


def is_of_the_moment(code: int) -> bool:
    """UNSUPPORTED_VERSION: the agent does not know yet that transactions may be used."""
    return ErrorCode(code).retriable or code == ErrorCode.UNSUPPORTED_VERSION


class NobodyAnswersError(Exception):
    pass


class Asking:
    """Connections of one client. A lost answer is asked for again, which every request here allows."""

    def __init__(self, addresses: Sequence[str], chance: random.Random) -> None:
        self._addresses, self._chance = addresses, chance
        self._lines: dict[tuple[int, str], KafkaClient] = {}

    async def anywhere(
        self, request: Message, response: type[Response], error_of: Callable[[Response], int] = lambda _: 0
    ) -> Response:
        """Each time at an agent of chance."""

        async def once() -> Response:
            return await self.at(self._chance.choice(self._addresses), request, response)

        return await self._until_answered(once, error_of)

    async def at_coordinator(
        self,
        kind: int,
        key: str,
        request: Message,
        response: type[Response],
        error_of: Callable[[Response], int],
    ) -> Response:
        async def once() -> Response:
            line = self._lines.get((kind, key))
            if line is None:
                line = self._lines[kind, key] = await self._find(kind, key)
            try:
                answer = await line.call(request, response)
            except BaseException:
                await self._hang_up(kind, key)
                raise
            if error_of(answer) and is_of_the_moment(error_of(answer)):
                await self._hang_up(kind, key)
            return answer

        return await self._until_answered(once, error_of)

    async def at(self, address: str, request: Message, response: type[Response]) -> Response:
        """Once, at this agent. Raises SiltstoneError."""
        line = await KafkaClient.connect(address, timeout_ms=ANSWER_MS)
        try:
            return await line.call(request, response)
        finally:
            await line.close()

    async def close(self) -> None:
        for kind, key in list(self._lines):
            await self._hang_up(kind, key)

    # ---- inside

    async def _until_answered(self, once: Callable[[], object], error_of: Callable[[Response], int]) -> Response:
        """Raises NobodyAnswersError."""
        deadline_s, last = time.monotonic() + PATIENCE_S, "nothing"
        while time.monotonic() < deadline_s:
            try:
                answer: Response = await once()  # type: ignore[misc]
            except SiltstoneError as error:
                last = str(error)
            else:
                code = error_of(answer)
                if not code or not is_of_the_moment(code):
                    return answer
                last = ErrorCode(code).name
            await asyncio.sleep(self._chance.uniform(*PAUSE_S))
        raise NobodyAnswersError(f"no answer in {PATIENCE_S} s, at last {last}")

    async def _find(self, kind: int, key: str) -> KafkaClient:
        """Raises SiltstoneError."""
        request = FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
        answer = await self.at(self._chance.choice(self._addresses), request, FindCoordinatorResponse)
        found = answer.coordinators[0]
        if found.error_code:
            raise SiltstoneError(f"no coordinator: {ErrorCode(found.error_code).name}")
        return await KafkaClient.connect(f"{found.host}:{found.port}", timeout_ms=ANSWER_MS)

    async def _hang_up(self, kind: int, key: str) -> None:
        line = self._lines.pop((kind, key), None)
        if line is not None:
            with suppress(SiltstoneError, OSError):
                await line.close()
