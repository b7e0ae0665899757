"""What every handler may use: the parts of one agent, put together by `agents/agent.py`."""

from __future__ import annotations

from dataclasses import dataclass

from agents.arrivals import Arrivals
from agents.catalog import Catalog
from agents.follower import Follower
from agents.fresh import FreshWatermarks
from agents.log_index import LogIndex
from agents.membership import Membership
from agents.producer_ids import ProducerIds
from agents.read.reader import Reader
from agents.write.path import WritePath
from metadata.service import MetadataService
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
    write_path: WritePath
    arrivals: Arrivals
    follower: Follower
    fresh: FreshWatermarks
    membership: Membership
    producer_ids: ProducerIds
    metadata: MetadataService
    clock: Clock
    metrics: Metrics
