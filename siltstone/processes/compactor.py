"""One compactor as a process: everything around `compactor.compactor.Compactor`.

Start: start the HTTP endpoint; open and check both stores, as an agent does; compile the kernels or load them from
their cache; start the compactor. Stop, on SIGTERM, SIGINT or the end of the lifeline: merges stop at their next step
and are given back, then everything is closed in reverse order. For the state after a kill see
`compactor/compactor.py`.
"""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

from compactor.compactor import Compactor
from compactor.merging.allocator import keep_freed_memory
from metadata.contract.store import MetadataStore
from runtime.errors import BadInputError
from runtime.logging import get_logger
from runtime.runtime import Runtime
from runtime.settings.checks import is_memory
from runtime.settings.table import Settings
from siltstone.processes.engines import engines
from siltstone.processes.garbage import USUAL
from siltstone.processes.monitoring.http_endpoint import HttpEndpoint
from siltstone.processes.monitoring.log_and_traces import log_and_traces
from siltstone.processes.monitoring.metrics_tls import metrics_tls_of
from siltstone.processes.monitoring.process_watch import process_watched
from siltstone.processes.opening import lifeline_watched, opened_stores
from siltstone.processes.running import RunningCompactor
from siltstone.processes.schema_wait import SchemaWait
from siltstone.processes.stopping import stop_signals, unless
from storage.objects import ObjectStore
from wire import kernels

_log = get_logger(__name__)


async def run_compactor(
    settings: Settings, *, on_ready: Callable[[RunningCompactor], None], lifeline: int | None = None
) -> None:
    """Run until a signal, or until the other end of the pipe `lifeline` is closed.

    Raises BadInputError for memory://, TracingMissingError, MissingUrlError, the errors of opening the stores,
    ClusterMismatchError, AddressInUseError, SparkMissingError and JavaMissingError if `spark.submitter` needs something
    that is missing, and the error for which the compactor must halt.
    """
    if is_memory(settings.metadata_url) or is_memory(settings.object_store_url):
        raise BadInputError(
            "memory:// exists only inside one process, so a separate compactor would find nothing in it; nothing was"
            " started",
            remedy="name the Postgres and the object store of the agents; `siltstone dev` compacts memory:// itself",
        )
    keep_freed_memory()
    gc.set_threshold(*USUAL)
    stopping = asyncio.Event()

    def ready(running: RunningCompactor) -> None:
        gc.collect()
        # As in an agent: objects of the start stay for good, so the collector need not look through them again.
        gc.freeze()
        on_ready(running)

    with stop_signals(stopping), lifeline_watched(lifeline, stopping):
        await _serve(settings, on_ready=ready, stopping=stopping)


@asynccontextmanager
async def compactor_beside(
    settings: Settings, store: ObjectStore, metadata: MetadataStore, runtime: Runtime
) -> AsyncGenerator[None]:
    """Run a compactor in the process of an agent, on its open stores, while the block runs. For memory://."""
    compactor = Compactor(settings=settings, store=store, metadata=metadata, runtime=runtime, host="memory")
    await compactor.start()
    try:
        yield
    finally:
        await compactor.stop()


async def _serve(settings: Settings, *, on_ready: Callable[[RunningCompactor], None], stopping: asyncio.Event) -> None:
    runtime = Runtime()
    async with AsyncExitStack() as stack:
        tracing = await stack.enter_async_context(
            log_and_traces(settings, role="compactor", stopping=stopping, runtime=runtime)
        )
        runtime = replace(runtime, tracing=tracing)
        compactor: Compactor | None = None
        wait = SchemaWait(settings.metadata_url, "compactor", runtime.clock)
        stack.enter_context(wait.naming_the_rights())

        def not_ready() -> Sequence[str]:
            if compactor is None and not stopping.is_set():
                return [wait.reason or "not started"]
            return ["stopping"] if compactor is None or stopping.is_set() or not compactor.ready else []

        watched = process_watched(
            runtime, role="compactor", not_ready=not_ready, figures_interval_ms=settings.log_figures_interval_ms
        )
        await stack.enter_async_context(watched)
        metrics_url = ""
        if settings.metrics_listen:
            endpoint = HttpEndpoint(
                listen=settings.metrics_listen,
                metrics=runtime.metrics,
                not_ready=not_ready,
                insecure=settings.metrics_insecure,
                tls=metrics_tls_of(settings, runtime),
            )
            await endpoint.start()
            stack.push_async_callback(endpoint.stop)
            metrics_url = endpoint.metrics_url
        compactor = await unless(stopping, _started(settings, runtime, stack, wait))
        if compactor is None:
            return
        # pushed last, so that merges are given back while everything else is still open
        stack.push_async_callback(compactor.stop)
        _log.info("compactor serves", node_id=compactor.node_id, metrics=metrics_url)
        on_ready(RunningCompactor(node_id=compactor.node_id, metrics_url=metrics_url))
        await unless(stopping, compactor.failed)
        _log.info("compactor stops", node_id=compactor.node_id)


async def _started(settings: Settings, runtime: Runtime, stack: AsyncExitStack, wait: SchemaWait) -> Compactor:
    store, metadata = await stack.enter_async_context(opened_stores(settings, runtime, wait=wait))
    await asyncio.to_thread(kernels.warm)  # the first merge must not wait for the compiler while its deadline runs
    chosen = await engines(settings, store, metadata, runtime)
    compactor = Compactor(
        settings=settings,
        store=store,
        metadata=metadata,
        runtime=runtime,
        host=socket.gethostname(),
        engines=chosen,
    )
    # Before the start: a compactor that fails halfway through it gives its lease back too. `stop` may be called twice.
    stack.push_async_callback(compactor.stop)
    await compactor.start()
    return compactor
