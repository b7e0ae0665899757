"""Asks the neighbour that owns a file for its blocks, with a deadline. Whatever goes wrong, the caller gets nothing and
reads from the object store: a neighbour saves a GET, and no answer depends on it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable

from agents.read.blocks import blocks_of
from agents.read.source import Fetched
from agents.zone.circuit import Circuit
from agents.zone.frames import AnswerHead, BadFrameError, Outcome, Request, answer_crc
from agents.zone.lines import Address, Dial, Lines
from agents.zone.tls import NotAnAgentError
from metadata.contract.leases import AgentInfo
from runtime.logging import get_logger
from runtime.runtime import Runtime

_log = get_logger(__name__)

ANSWER_MS = 150.0
"""How long an answer may take. Nearly every GET of S3 begins to answer within this time, and the owner may have to make
one. A reader that waits in vain has lost this time once: then the neighbour is left alone."""
ANSWER_MS_PER_MIB = 25.0
"""Time for each MiB: a GET from S3 brings about 80 MB/s, and the bytes come over two hops."""


CALLS_MAX = 16
"""Requests under way to all neighbours; others wait for their turn, as for a GET."""


class CorruptAnswerError(BadFrameError):
    """The bytes do not fit their CRC, or belong to another place."""


class Neighbours:
    def __init__(self, dial: Dial, runtime: Runtime) -> None:
        self._lines = Lines(dial)
        self._clock = runtime.clock
        self._circuits: dict[Address, Circuit] = {}
        self._asking: Counter[tuple[str, int]] = Counter()
        self._turns = asyncio.Semaphore(CALLS_MAX)
        self._requests = runtime.metrics.zone_requests_total
        # At 0 from the start: that nobody was asked yet shows that the zone is on.
        for outcome in ("served", "busy", "late", "failed", "corrupt"):
            self._requests.labels(outcome=outcome)
        self._bytes = runtime.metrics.zone_bytes_total.labels(direction="received")

    def dial_by(self, dial: Dial) -> None:
        """Before anybody was asked."""
        self._lines = Lines(dial)

    async def ask(self, owner: AgentInfo, request: Request) -> Fetched | None:
        """The bytes; None if the caller should read them from the object store."""
        places = [(request.key, block) for block in blocks_of(request.start, request.length)]
        # Also while it waits for its turn: who asks us for the same must not wait for that.
        self._asking.update(places)
        try:
            async with self._turns:
                return await self._ask(owner, request)
        finally:
            self._asking -= Counter(places)

    async def _ask(self, owner: AgentInfo, request: Request) -> Fetched | None:
        address = (owner.address.host, owner.address.zone_port)
        circuit = self._circuits.setdefault(address, Circuit())
        asked_ms = self._clock.monotonic_ms()
        if not circuit.may_ask(asked_ms):
            return None
        try:
            head, body = await self._answer(address, request)
            outcome = "busy" if head.outcome is Outcome.BUSY else "failed"
            if head.outcome is Outcome.SERVED:
                self._bytes.inc(len(body))
                self._report(circuit, "served", asked_ms)
                return Fetched(memoryview(body).toreadonly(), asked_ms - head.age_ms)
        except asyncio.CancelledError:
            circuit.gave_up()
            raise
        except TimeoutError:
            outcome = "late"
        except CorruptAnswerError as error:
            outcome = "corrupt"
            _log.error("a neighbour sent wrong bytes", neighbour=owner.writer_id, key=request.key, error=str(error))
        except (OSError, BadFrameError, NotAnAgentError) as error:
            outcome = "failed"
            _log.info("a neighbour did not answer", neighbour=owner.writer_id, key=request.key, error=str(error))
        self._report(circuit, outcome, asked_ms)
        return None

    def _report(self, circuit: Circuit, outcome: str, asked_ms: float) -> None:
        if outcome in ("served", "busy"):
            circuit.worked()
        else:
            circuit.failed(asked_ms, self._clock.monotonic_ms())
        self._requests.labels(outcome=outcome).inc()

    def is_asking(self, key: str, blocks: Iterable[int]) -> bool:
        """Another agent was asked for one of these blocks and has not answered yet."""
        return any((key, block) in self._asking for block in blocks)

    def keep_only(self, agents: Iterable[AgentInfo]) -> None:
        """Forget the agents that are no neighbours any more."""
        addresses = {(agent.address.host, agent.address.zone_port) for agent in agents}
        self._lines.keep_only(addresses)
        for address in self._circuits.keys() - addresses:
            del self._circuits[address]

    async def _answer(self, address: Address, request: Request) -> tuple[AnswerHead, bytearray]:
        async with asyncio.timeout((ANSWER_MS + ANSWER_MS_PER_MIB * request.length / (1 << 20)) / 1000):
            head, body = await self._lines.ask(address, request)
        if head.outcome is Outcome.SERVED and answer_crc(request, head.age_ms, [body]) != head.crc:
            raise CorruptAnswerError(f"{len(body)} bytes at {request.start} do not fit their CRC")
        return head, body
