"""One agent as a process: everything around `agents.agent.Agent`.

Start: start the HTTP endpoint; open the object store and the metadata, which may have to wait for its schema
(`siltstone/processes/schema_wait.py`); check that both have the same cluster id; probe that the object store refuses to
overwrite (otherwise two writers could destroy each other's files); start the agent.
Stop, on SIGTERM, SIGINT or the end of the lifeline: the agent sends its clients to the other agents and drains, then
everything is closed in reverse order. A second signal ends the wait for clients. A signal during the start ends the
start. For the state after a kill see `agents/agent.py`.
"""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import asdict, replace
from functools import partial

from agents.agent import Agent
from metadata.contract.store import MetadataStore
from runtime.logging import get_logger
from runtime.runtime import Runtime
from runtime.settings.table import Settings
from siltstone.processes.descriptors import settings_within_descriptors
from siltstone.processes.ecs_metadata import settings_on_ecs
from siltstone.processes.garbage import SELDOM
from siltstone.processes.monitoring.http_endpoint import HttpEndpoint
from siltstone.processes.monitoring.log_and_traces import log_and_traces
from siltstone.processes.monitoring.metrics_tls import metrics_tls_of
from siltstone.processes.monitoring.process_watch import process_watched
from siltstone.processes.opening import lifeline_watched, opened_stores
from siltstone.processes.running import RunningAgent
from siltstone.processes.schema_wait import SchemaWait
from siltstone.processes.stopping import on_hangup, stop_signals, unless
from storage.objects import ObjectStore

_log = get_logger(__name__)

Beside = Callable[[Settings, ObjectStore, MetadataStore, Runtime], AbstractAsyncContextManager[None]]
"""A part that uses the same open stores while the agent runs."""


async def run_agent(
    settings: Settings, *, on_ready: Callable[[RunningAgent], None], lifeline: int | None = None
) -> None:
    """Run until a signal, or until the other end of the pipe `lifeline` is closed; then drain.

    Raises TracingMissingError, MissingUrlError, EcsMetadataError, EcsUnavailableError, DescriptorsError, the errors of
    opening the stores, ClusterMismatchError, AddressError, AddressInUseError, DuplicateAgentError, and the error for
    which the agent must halt.
    """
    stopping, again = asyncio.Event(), asyncio.Event()

    def ready(running: RunningAgent) -> None:
        # Objects that exist now stay for good: the collector need not look through them again. There is no collection
        # before, because with 100,000 partitions it would hold up clients that are connected already.
        gc.freeze()
        on_ready(running)

    gc.collect()  # what the imports left
    gc.freeze()
    gc.set_threshold(*SELDOM)

    with stop_signals(stopping, again), lifeline_watched(lifeline, stopping):
        await serve_agent(settings, on_ready=ready, stopping=stopping, again=again, on_hangup=on_hangup)


async def serve_agent(
    settings: Settings,
    *,
    on_ready: Callable[[RunningAgent], None],
    stopping: asyncio.Event,
    again: asyncio.Event | None = None,
    beside: Beside | None = None,
    on_hangup: Callable[[Callable[[], None]], None] | None = None,
) -> None:
    """Run as `run_agent` does, but without signals, until `stopping` is set. `again` ends the wait for clients.

    `on_hangup` takes what SIGHUP does in an agent with certificates: it reads them again. Without any it stops.
    `beside` is for stores of memory://.
    """
    runtime = Runtime()
    async with AsyncExitStack() as stack:
        tracing = await stack.enter_async_context(
            log_and_traces(settings, role="agent", stopping=stopping, runtime=runtime)
        )
        runtime = replace(runtime, tracing=tracing)
        agent: Agent | None = None
        wait = SchemaWait(settings.metadata_url, "agent", runtime.clock)
        stack.enter_context(wait.naming_the_rights())

        def not_ready() -> Sequence[str]:
            """The reasons why clients should not be sent to this agent; empty if it is ready."""
            if stopping.is_set():
                return ["stopping"]
            return [] if agent is not None and agent.ready else [wait.reason or "not started"]

        metrics_tls = metrics_tls_of(settings, runtime)
        watched = process_watched(
            runtime, role="agent", not_ready=not_ready, figures_interval_ms=settings.log_figures_interval_ms
        )
        await stack.enter_async_context(watched)
        metrics_url = ""
        if settings.metrics_listen:
            endpoint = HttpEndpoint(
                listen=settings.metrics_listen,
                metrics=runtime.metrics,
                not_ready=not_ready,
                producers=lambda: producers_page(agent),
                insecure=settings.metrics_insecure,
                tls=metrics_tls,
            )
            await endpoint.start()
            stack.push_async_callback(endpoint.stop)
            metrics_url = endpoint.metrics_url
        agent = await unless(stopping, _started(settings, runtime, stack, beside, wait))
        if agent is None:
            return
        reloads = [agent.reload_certificates] if agent.has_certificates else []
        reloads += [metrics_tls.reload] if metrics_tls is not None else []
        if on_hangup is not None and reloads:
            on_hangup(partial(_call_all, reloads))
        # pushed last, so that the agent drains while everything else is still open
        stack.push_async_callback(_stop, agent, again or asyncio.Event())
        on_ready(RunningAgent(bootstrap=agent.address, metrics_url=metrics_url))
        await unless(stopping, agent.failed)
        _log.info("agent stops", address=agent.address)


def _call_all(calls: Sequence[Callable[[], None]]) -> None:
    for call in calls:
        call()


def producers_page(agent: Agent | None) -> Mapping[str, object]:
    """`/producers`; an agent that does not run yet has an empty page."""
    report = None if agent is None else agent.waits()
    return {} if report is None else asdict(report)


async def _stop(agent: Agent, again: asyncio.Event) -> None:
    hurrying = asyncio.create_task(_hurry(agent, again), name="second stop signal")
    try:
        await agent.stop()
    finally:
        hurrying.cancel()
        await asyncio.gather(hurrying, return_exceptions=True)


async def _hurry(agent: Agent, again: asyncio.Event) -> None:
    await again.wait()
    _log.info("second stop signal: clients are not waited for")
    agent.hurry()


async def _started(
    settings: Settings,
    runtime: Runtime,
    stack: AsyncExitStack,
    beside: Beside | None,
    wait: SchemaWait,
) -> Agent:
    settings = settings_within_descriptors(await settings_on_ecs(settings, os.environ, runtime.clock))
    store, metadata = await stack.enter_async_context(opened_stores(settings, runtime, hedges=True, wait=wait))
    if beside is not None:
        await stack.enter_async_context(beside(settings, store, metadata, runtime))
    agent = Agent(settings=settings, store=store, metadata=metadata, runtime=runtime)
    # Before the start: an agent that fails halfway through it is stopped too. `stop` may be called twice.
    stack.push_async_callback(agent.stop)
    await agent.start()
    return agent
