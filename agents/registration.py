"""Taking the lease of our address, which another process may have.

A process that was killed gives no lease back, so its last heartbeat is all that there is: whoever comes after it waits
until a living process would have beaten again, and looks a second time. A heartbeat in between proves that two living
processes advertise one address. The one that asks then gives up, as Kafka answers DUPLICATE_BROKER_REGISTRATION.
Taking the lease all the same would fence the other process, which would take it back, for ever.

Only a heartbeat is such a proof. A new lease is none: a registration of a dead process, or one of ours whose answer was
lost, may arrive late. Such a lease stands still, and is taken after another wait.
"""

from __future__ import annotations

from metadata.contract.agents import AgentMetadata
from metadata.contract.leases import ALIVE_MS, AddressTakenError, AgentAddress, WriterLease
from runtime.clock import Clock
from runtime.errors import BadInputError
from runtime.logging import get_logger
from runtime.settings.addresses import format_address

_log = get_logger(__name__)

MORE_MS = 50
"""Added to each wait, because our clock and the store's do not go at quite the same speed."""


class DuplicateAgentError(BadInputError):
    """Another living process advertises our address."""

    def __init__(self, address: AgentAddress, taken: AddressTakenError, *, fenced: bool) -> None:
        place = format_address(address.host, address.port)
        other = f"node id {taken.holder.writer_id}, epoch {taken.holder.epoch}"
        done = "it took the lease of this one, which wrote nothing since" if fenced else "this one wrote nothing"
        super().__init__(
            f"another process runs and advertises {place} too: {other}; {done}",
            remedy="stop the other process, or give this one another address: the port of listen, or advertised.host",
        )


async def register(
    metadata: AgentMetadata, address: AgentAddress, clock: Clock, *, instead_of: WriterLease | None = None
) -> WriterLease:
    """Take the lease as soon as no other process runs under it.

    `instead_of`: our own last lease. Raises DuplicateAgentError, and what `register_agent` raises.
    """
    seen: AddressTakenError | None = None
    while True:
        try:
            return await metadata.register_agent(address, instead_of=instead_of)
        except AddressTakenError as taken:
            if seen is not None and taken.holder == seen.holder and taken.beat_ms != seen.beat_ms:
                raise DuplicateAgentError(address, taken, fenced=instead_of is not None) from taken
            wait_ms = taken.beat_ms + ALIVE_MS - taken.now_ms + MORE_MS
            if seen is None:
                holder = {"node_id": taken.holder.writer_id, "epoch": taken.holder.epoch}
                place = format_address(address.host, address.port)
                _log.info("waits: the last process at this address may still run", address=place, ms=wait_ms, **holder)
            seen = taken
        await clock.sleep_ms(wait_ms)
