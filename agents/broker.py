"""The parts of one agent that every handler may use; `agents/agent.py` puts them together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass, field

from agents.draining import Draining
from agents.features import Features
from agents.groups.coordinator import GroupCoordinator
from agents.membership import Membership
from agents.producer_ids import ProducerIds
from agents.quotas.throttle import Throttle
from agents.read.reader import Reader
from agents.read.sessions import FetchSessions
from agents.read.timestamps.search import TimestampSearch
from agents.request_context import RequestContext
from agents.security.authorizer import Authorizer
from agents.security.freshness import Freshness
from agents.security.known import KnownSecurity
from agents.security.rights import UNLIMITED, Rights
from agents.tail.follower import Follower
from agents.tail.fresh_watermarks import FreshWatermarks
from agents.tail.log_index import LogIndex
from agents.tail.waiters import ParkedReaders
from agents.topics.present import PresentTopics
from agents.topics.rules import RequestError
from agents.topics.topic_cache import TopicCache
from agents.topics.topic_entries import TopicEntries
from agents.topics.topic_ids import TopicIds
from agents.transactions.coordinator import TransactionCoordinator
from agents.write.path import WritePath
from agents.write.stall import WriteStall
from agents.write.walks import RecordWalks
from metadata.contract.errors import MetadataUnavailableError
from metadata.contract.leases import AgentAddress
from metadata.contract.store import MetadataStore
from runtime.runtime import Runtime
from runtime.settings.listeners import DEFAULT_LISTENER
from runtime.settings.table import Settings
from wire.error_codes import ErrorCode

TAKEN_IN_MS_MAX = 15_000.0
"""Longer than a lease runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    settings: Settings
    cluster_id: str
    topic_cache: TopicCache
    index: LogIndex
    reader: Reader
    timestamps: TimestampSearch
    fetch_sessions: FetchSessions
    present_topics: PresentTopics
    topic_ids: TopicIds
    write_path: WritePath
    record_walks: RecordWalks
    stall: WriteStall
    parked_readers: ParkedReaders
    follower: Follower
    fresh: FreshWatermarks
    membership: Membership
    draining: Draining
    producer_ids: ProducerIds
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    features: Features
    security: KnownSecurity
    throttle: Throttle
    metadata: MetadataStore
    runtime: Runtime
    authorizer: Authorizer = field(default_factory=Authorizer)
    freshness: Freshness | None = None
    """None: nobody is judged by anything in the metadata store."""
    timers: Context = field(default_factory=Context)
    """The context that timers run in. A cancelled timer keeps its context for a long time; the context of a request
    would keep the request alive with it."""
    listeners: Sequence[str] = (DEFAULT_LISTENER,)
    """The names of this agent's listeners, the first one first."""
    bootstrap: AgentAddress | None = None
    """The address of `advertised.bootstrap`, under which some agent always answers; for clients of the first listener.
    """
    topic_entries: TopicEntries = field(default_factory=TopicEntries)
    topic_entries_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while many entries are encoded, so that clients which ask at the same time share one encoding."""

    def rights(self) -> Rights:
        """The rights of the client whose request is being worked on."""
        return self.authorizer.rights() if self.authorizer.on else UNLIMITED

    def holds(self, request: RequestContext | None) -> bool:
        """Rights may have been taken from the client without our knowledge: tell it no records."""
        if self.freshness is None or request is None:
            return False
        return self.freshness.holds(request.client, self.runtime.clock.monotonic_ms())

    async def taken_in_everywhere(self, change_id: int) -> None:
        """Wait until every agent judges by this change of users, ACLs or quotas, or has lost its lease.

        Raises RequestError(REQUEST_TIMED_OUT), MetadataUnavailableError.
        """
        await self.follower.catch_up()
        if not await self.security.applied_everywhere(change_id, TAKEN_IN_MS_MAX):
            raise RequestError(
                ErrorCode.REQUEST_TIMED_OUT,
                "the change is made, but some agents have not taken it in yet; ask for it again to wait for them",
            )

    async def hint_others(self) -> None:
        """Call it after a change of topics, configs or log starts: the other agents hear of it soon."""
        with suppress(MetadataUnavailableError):  # they also poll
            await self.metadata.agents.notify()
