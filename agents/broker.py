"""What every handler may use: the parts of one agent, put together by `agents/agent.py`."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from agents.arrivals import Arrivals
from agents.catalog import Catalog
from agents.follower import Follower
from agents.fresh import FreshWatermarks
from agents.log_index import LogIndex
from agents.membership import Membership
from agents.producer_ids import ProducerIds
from agents.read.reader import Reader
from agents.read.timestamps import TimestampSearch
from agents.topic_entries import TopicEntries
from agents.write.path import WritePath
from agents.write.stall import WriteStall
from metadata.compaction import Metadata
from siltstone.clock import Clock
from siltstone.metrics import Metrics
from siltstone.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    settings: Settings
    cluster_id: str
    catalog: Catalog
    index: LogIndex
    reader: Reader
    timestamps: TimestampSearch
    write_path: WritePath
    stall: WriteStall
    arrivals: Arrivals
    follower: Follower
    fresh: FreshWatermarks
    membership: Membership
    producer_ids: ProducerIds
    metadata: Metadata
    clock: Clock
    metrics: Metrics
    topic_entries: TopicEntries = field(default_factory=TopicEntries)
    topic_entries_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while many entries are made, so that clients which ask together wait for one another's."""
