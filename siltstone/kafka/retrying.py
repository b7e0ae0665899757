"""A client that outlives agents: it repeats a request at the next agent, as long as the caller says that this is safe.

Any agent takes any produce and serves any fetch, so it does not matter which one answers. The first connection goes to
a bootstrap address and is not retried, so that a wrong address is reported at once. From then on the client also knows
the agents that Metadata names. An agent that stops sends its clients away with NOT_LEADER_OR_FOLLOWER: the client goes
to an agent that its Metadata names.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self, TypeVar

from runtime.clock import Clock
from runtime.errors import SiltstoneError, UnavailableError
from siltstone.kafka.client import KafkaClient, KafkaError
from wire.error_codes import ErrorCode

T = TypeVar("T")

PATIENCE_MS = 60_000
"""Requests are repeated for this long after the first failure."""
BACKOFF_MS = 200
BACKOFF_MS_MAX = 2_000
QUIET_MS = 1_000
"""A temporary error that is over within this time is not printed."""


def is_passing(code: int) -> bool:
    """Whether a request with this error is worth repeating. An unknown topic is not: it does not appear by itself."""
    try:
        return ErrorCode(code).retriable and code != int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    except ValueError:
        return False


class RetryNotice:
    """Decides how long a request is repeated. Prints one line when repeating starts, and one when it is over."""

    def __init__(self, told: Callable[[str], None], clock: Clock, patience_ms: float) -> None:
        self._told, self._clock, self._patience_ms = told, clock, patience_ms
        self._failed_ms: float | None = None
        self._is_told = False

    def failed(self, error: SiltstoneError, *, is_lost: bool, wait_ms: float) -> bool:
        """Whether to repeat the request after `wait_ms`; patience counts from the first failure.

        `is_lost`: no agent answers. That is printed at once; an error code only if it lasts longer than `QUIET_MS`.
        """
        now_ms = self._clock.monotonic_ms()
        self._failed_ms = now_ms if self._failed_ms is None else self._failed_ms
        # With the wait counted in: a try that would begin after the end of the patience is not announced and not made.
        if now_ms + wait_ms > self._failed_ms + self._patience_ms:
            return False
        if not self._is_told and (is_lost or now_ms - self._failed_ms >= QUIET_MS):
            self._told(f"{error.message}: retrying for up to {self._patience_ms / 1000:.0f} s")
            self._is_told = True
        return True

    def answered(self, who: str) -> None:
        if self._is_told:
            self._told(f"{who} answers again")


class RetryingClient:
    """A client that reconnects and repeats requests. Use as an async context manager."""

    def __init__(
        self,
        bootstrap: str,
        clock: Clock,
        *,
        patience_ms: float = PATIENCE_MS,
        told: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`told` gets a line when an agent is lost or answers with temporary errors for over a second, and another line
        when that is over."""
        self._addresses = [bootstrap]
        self._clock = clock
        self._patience_ms = patience_ms
        self._told = told
        self._client: KafkaClient | None = None

    async def __aenter__(self) -> Self:
        await self._connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._drop()

    async def run(self, work: Callable[[KafkaClient], Awaitable[T]]) -> T:
        """Do `work`, which must be safe to repeat. After a temporary error it is repeated until `patience_ms` after the
        first error; then the last error is raised. Any other error is raised at once. `work` that is sent away must
        raise that error."""
        backoff_ms = BACKOFF_MS
        notice = RetryNotice(self._told, self._clock, self._patience_ms)
        while True:
            try:
                client = self._client or await self._connect()
                result = await work(client)
            except (UnavailableError, KafkaError) as error:
                if isinstance(error, KafkaError) and not is_passing(error.code):
                    raise
                is_lost = isinstance(error, UnavailableError)
                if not notice.failed(error, is_lost=is_lost, wait_ms=backoff_ms):
                    raise
                if is_lost:
                    await self._drop()  # the next turn connects again, perhaps to another agent
                elif _is_sent_away(error):
                    await self._move()
            else:
                notice.answered("an agent")
                return result
            await self._clock.sleep_ms(backoff_ms)
            backoff_ms = min(2 * backoff_ms, BACKOFF_MS_MAX)

    def notice(self) -> RetryNotice:
        """For a caller that repeats by itself because of errors inside an answer."""
        return RetryNotice(self._told, self._clock, self._patience_ms)

    async def run_once(self, work: Callable[[KafkaClient], Awaitable[T]]) -> T:
        """Do `work`, which must not be repeated, once. If the connection breaks, the next call connects again. An agent
        that sends its clients away has done nothing: then it is done once at another."""
        if self._client is not None and self._client.is_closed_by_agent:
            await self._drop()
        try:
            return await work(self._client or await self._connect())
        except UnavailableError:
            await self._drop()
            raise
        except KafkaError as error:
            if not _is_sent_away(error):
                raise
        await self._move()
        return await work(self._client or await self._connect())

    async def _move(self) -> None:
        """Leave an agent that stops, for those that it names."""
        client = self._client
        if client is None:
            return
        try:
            named = [address_of(each.host, each.port) for each in (await client.metadata([])).brokers]
        except UnavailableError:
            named = []  # it has ended: any other may answer
        await self._drop()
        if named:
            self._addresses = _joined(self._addresses[0], named)
            # Not the bootstrap address first: the agent that stops may still answer there.
            with suppress(UnavailableError):
                self._client = await KafkaClient.connect(",".join(named))

    async def _connect(self) -> KafkaClient:
        client = await KafkaClient.connect(",".join(self._addresses))
        try:
            # No topics: only the list of agents is wanted, to go on with when this one is lost.
            answer = await client.metadata([])
        except BaseException:
            await client.close()  # after a failed __aenter__ nobody calls __aexit__
            raise
        self._addresses = _joined(self._addresses[0], [address_of(each.host, each.port) for each in answer.brokers])
        self._client = client
        return client

    async def _drop(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()


def _is_sent_away(error: SiltstoneError) -> bool:
    return isinstance(error, KafkaError) and error.code == int(ErrorCode.NOT_LEADER_OR_FOLLOWER)


def address_of(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _joined(bootstrap: str, found: Sequence[str]) -> list[str]:
    """The bootstrap addresses first, then the other addresses in order."""
    return [bootstrap, *(each for each in found if each not in bootstrap.split(","))]
