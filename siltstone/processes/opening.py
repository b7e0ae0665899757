"""The start of every process: open both stores, check them against each other, and watch the lifeline."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager

from metadata.contract.store import MetadataStore
from metadata.urls import open_metadata
from runtime.errors import BadInputError
from runtime.logging import get_logger
from runtime.runtime import Runtime
from runtime.settings.checks import is_memory
from runtime.settings.table import Settings
from siltstone.processes.places import place_of
from siltstone.processes.schema_wait import SchemaWait
from storage.cluster import check_cluster
from storage.objects import ObjectStore
from storage.probe import probe_conditional_create
from storage.second_store import check_second, second_of
from storage.urls import open_store, parse_store_url
from storage.wrappers.hedged import Hedged
from storage.wrappers.metered import Metered
from storage.wrappers.retrying import Retrying
from storage.wrappers.traced import Traced

_log = get_logger(__name__)


class MissingUrlError(BadInputError):
    """The URL of the records or of the metadata is not set."""


@asynccontextmanager
async def opened_stores(
    settings: Settings, runtime: Runtime, *, hedges: bool = False, wait: SchemaWait | None = None
) -> AsyncGenerator[tuple[ObjectStore, MetadataStore]]:
    """Open both stores and check them against each other; close them at the end of the block.

    `hedges`: a ranged GET from S3 that is late gets a second request. For those whose readers wait.
    `wait`: a schema that is not there yet is waited for.
    """
    for name, url in (("object.store.url", settings.object_store_url), ("metadata.url", settings.metadata_url)):
        if not url:
            raise MissingUrlError(
                f"{name} is not set; nothing was started",
                remedy="set it as docs/settings.md says, or run `siltstone dev`, which brings its own",
            )
    async with AsyncExitStack() as stack:
        # parse both URLs before either store is used
        store = layered_store(place_of(settings), runtime, hedges=hedges)
        metadata = open_metadata(
            settings.metadata_url,
            producer_id_expiration_ms=settings.producer_id_expiration_ms,
            runtime=runtime,
        )
        # Pushed before `open`, so that a store that fails halfway through opening is closed as well.
        stack.push_async_callback(store.close)
        await store.open()
        stack.push_async_callback(metadata.close)
        if wait is None or is_memory(settings.metadata_url):
            await metadata.open()
        else:
            await wait.open(metadata)
        identity = await metadata.cluster_identity()
        # before the probe, which writes: the store of another cluster must stay untouched
        if await check_cluster(store, cluster_id=identity.cluster_id, store_bound=identity.store_bound):
            await metadata.bind_store()
        await check_second(store, cluster_id=identity.cluster_id, ids=runtime.ids, clock=runtime.clock)
        for each in (store, second_of(store, runtime.clock, runtime.ids)):
            if each is not None:
                (await probe_conditional_create(each, runtime.ids, runtime.clock)).check()
        yield store, metadata


def layered_store(url: str, runtime: Runtime, *, hedges: bool) -> Retrying:
    """The store with its wrappers, not opened yet (see `storage/wrappers/wrapper.py`)."""
    place = parse_store_url(url)
    store: ObjectStore = Metered(open_store(place), runtime.metrics, runtime.clock)
    if runtime.tracing.on:
        store = Traced(store)
    # A disk has no second way to the same bytes.
    if hedges and place.scheme == "s3":
        store = Hedged(store, runtime.metrics, runtime.clock)
    return Retrying(store, runtime.clock, runtime.ids)


@contextmanager
def lifeline_watched(descriptor: int | None, stopping: asyncio.Event) -> Generator[None]:
    """Set `stopping` when the parent process, which holds the other end of the pipe, has ended."""
    if descriptor is None:
        yield
        return
    loop = asyncio.get_running_loop()

    def readable() -> None:
        # Nobody writes into the pipe; readable with nothing to read means that its other end is closed.
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
