"""A compactor in the process of a command that waits for one, while no other runs."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from metadata.contract.store import MetadataStore
from runtime.errors import BadInputError
from runtime.logging import configure
from runtime.runtime import Runtime
from runtime.settings.table import Settings
from siltstone.cli.options.system_options import Urls
from siltstone.processes.opening import opened_stores
from siltstone.terminal.plain import say

T = TypeVar("T")

COMPACTOR_LOADS_MS = 10_000
"""A starting `siltstone dev` gets this long to bring up its compactor."""
LOOK_MS = 1_000
"""Time between two looks for a live compactor."""


async def helped(
    work: Coroutine[Any, Any, T], metadata: MetadataStore, urls: Urls, settings: Settings, *, command: str, until: str
) -> T:
    """The result of `work`, which waits for compactors. If none runs, one runs here until then.

    `command` and `until` are for people: "compact", "the pass is done". Raises the errors of `work` and of the
    compactor.
    """
    waiting = asyncio.create_task(work)
    helping = asyncio.create_task(_compact_if_nobody_does(metadata, urls, settings, command, until))
    try:
        # The work ends when the request is carried out, no matter by which compactor.
        await asyncio.wait({waiting, helping}, return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            await helping  # the compactor in this process ends only by an error
        return await waiting
    finally:
        waiting.cancel()
        helping.cancel()
        await asyncio.gather(waiting, helping, return_exceptions=True)


async def _compact_if_nobody_does(
    metadata: MetadataStore, urls: Urls, settings: Settings, command: str, until: str
) -> None:
    """Watch for live compactors; when there is none, run one here. Ends only by cancellation or an error."""
    runtime = Runtime()
    clock = runtime.clock
    # `siltstone dev` accepts clients before its compactor has loaded. Wait for that one: it has the settings of dev,
    # which this process does not know.
    patient_until_ms = clock.monotonic_ms() + (COMPACTOR_LOADS_MS if urls.bootstrap else 0)
    while await metadata.compactors.live_compactors() or clock.monotonic_ms() < patient_until_ms:
        await clock.sleep_ms(LOOK_MS)
    if not urls.object_store:
        raise BadInputError(
            "no compactor is running, and none can run in this process without the URL of the object store; the request"
            " is stored and stays",
            remedy="give --object-store URL, or start `siltstone compactor`",
        )
    say(f"no compactor is running: one runs in this process until {until}", err=True)
    if settings.log_level == "info":  # the log lines of a compactor are not part of this command's answer
        configure("warning", settings.log_format)
    from compactor.compactor import Compactor  # loads the compiler of the kernels, which takes seconds
    from siltstone.processes.engines import engines

    here = replace(settings, metadata_url=urls.metadata, object_store_url=urls.object_store)
    async with opened_stores(here, runtime) as (store, own):
        chosen = await engines(here, store, own, runtime)
        compactor = Compactor(
            settings=here,
            store=store,
            metadata=own,
            runtime=runtime,
            host=f"{socket.gethostname()} (siltstone {command})",
            engines=chosen,
        )
        await compactor.start()
        try:
            await compactor.failed
        finally:
            await compactor.stop()
