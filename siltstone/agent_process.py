"""One agent as a process: everything around `agents.agent.Agent`.

Start: open the object store and the metadata store, check that both carry the same cluster id, probe that the object
store refuses to overwrite (without that two writers could destroy each other's files), start the agent, then the HTTP
endpoint. Stop, on SIGTERM, SIGINT or the end of the lifeline: the agent drains, then everything is closed in reverse
order. A signal during the start ends the start. A kill leaves what the agent's own rules allow: see `agents/agent.py`.
"""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager

from agents.agent import Agent
from metadata.service import MetadataService
from metadata.urls import open_metadata
from siltstone.clock import Clock, SystemClock
from siltstone.embedded.running import RunningAgent
from siltstone.errors import BadInputError
from siltstone.http_endpoint import HttpEndpoint
from siltstone.ids import IdSource, SystemIds
from siltstone.logging import get_logger
from siltstone.metrics import Metrics
from siltstone.settings import Settings
from siltstone.stopping import stop_signals, unless
from storage.cluster import check_cluster
from storage.metered import Metered
from storage.objects import ObjectStore
from storage.probe import probe_conditional_create
from storage.retrying import Retrying
from storage.urls import open_store

_log = get_logger(__name__)

GARBAGE_THRESHOLDS = (20_000, 20, 20)
"""Python's default of 700 looks for cycles after every few requests, among thousands of batches that are in use."""


class MissingUrlError(BadInputError):
    """Nothing says where records or metadata live."""


async def run_agent(
    settings: Settings, *, on_ready: Callable[[RunningAgent], None], lifeline: int | None = None
) -> None:
    """Run until a signal, or until the other end of the pipe `lifeline` is closed, and drain.

    Raises MissingUrlError, what opening the stores raises, ClusterMismatchError, AddressError, AddressInUseError, and
    the agent's own reason when it must halt.
    """
    stopping = asyncio.Event()

    def ready(running: RunningAgent) -> None:
        gc.collect()
        gc.freeze()  # what is there now stays: there is no need to look through it again and again
        gc.set_threshold(*GARBAGE_THRESHOLDS)
        on_ready(running)

    with stop_signals(stopping), _lifeline(lifeline, stopping):
        await serve_agent(settings, on_ready=ready, stopping=stopping)


async def serve_agent(settings: Settings, *, on_ready: Callable[[RunningAgent], None], stopping: asyncio.Event) -> None:
    """`run_agent` without signals: until `stopping` is set."""
    metrics, clock, ids = Metrics(), SystemClock(), SystemIds()
    async with AsyncExitStack() as stack:
        agent = await unless(stopping, _started(settings, metrics, clock, ids, stack))
        if agent is None:
            return
        metrics_url = ""
        if settings.metrics_listen:
            endpoint = HttpEndpoint(
                listen=settings.metrics_listen,
                metrics=metrics,
                not_ready=lambda: reasons_not_ready(agent, stopping),
                insecure=settings.insecure,
            )
            await endpoint.start()
            stack.push_async_callback(endpoint.stop)
            metrics_url = endpoint.metrics_url
        # pushed last, so that it drains while all else still stands
        stack.push_async_callback(agent.stop)
        on_ready(RunningAgent(bootstrap=agent.address, metrics_url=metrics_url))
        await unless(stopping, agent.failed)
        _log.info("agent stops", address=agent.address)


def reasons_not_ready(agent: Agent, stopping: asyncio.Event) -> Sequence[str]:
    """Why clients should not be sent here."""
    if stopping.is_set():
        return ["stopping"]
    return [] if agent.ready else ["not started"]


async def _started(settings: Settings, metrics: Metrics, clock: Clock, ids: IdSource, stack: AsyncExitStack) -> Agent:
    store, metadata = await stack.enter_async_context(opened_stores(settings, metrics, clock, ids))
    agent = Agent(settings=settings, store=store, metadata=metadata, clock=clock, ids=ids, metrics=metrics)
    stack.push_async_callback(agent.stop)
    await agent.start()
    return agent


@asynccontextmanager
async def opened_stores(
    settings: Settings, metrics: Metrics, clock: Clock, ids: IdSource
) -> AsyncGenerator[tuple[ObjectStore, MetadataService]]:
    """Both stores, open and checked against each other."""
    for name, url in (("object.store.url", settings.object_store_url), ("metadata.url", settings.metadata_url)):
        if not url:
            raise MissingUrlError(
                f"{name} is not set", remedy="see docs/settings.md; `siltstone dev` brings everything along"
            )
    async with AsyncExitStack() as stack:
        # both URLs are read before either place is touched
        store = Retrying(Metered(open_store(settings.object_store_url), metrics, clock), clock, ids)
        metadata = open_metadata(
            settings.metadata_url,
            producer_id_expiration_ms=settings.producer_id_expiration_ms,
            clock=clock,
            ids=ids,
        )
        stack.push_async_callback(store.close)
        await store.open()
        stack.push_async_callback(metadata.close)
        await metadata.open()
        identity = await metadata.cluster_identity()
        # before the probe, which writes: a store that belongs to somebody else is left as it is
        if await check_cluster(store, cluster_id=identity.cluster_id, store_bound=identity.store_bound):
            await metadata.bind_store()
        (await probe_conditional_create(store, ids, clock)).check()
        yield store, metadata


@contextmanager
def _lifeline(descriptor: int | None, stopping: asyncio.Event) -> Generator[None]:
    """Set `stopping` when the parent, who holds the other end of the pipe, is gone."""
    if descriptor is None:
        yield
        return
    loop = asyncio.get_running_loop()

    def readable() -> None:
        if not os.read(descriptor, 1):
            loop.remove_reader(descriptor)
            _log.warning("parent is gone")
            stopping.set()

    loop.add_reader(descriptor, readable)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
