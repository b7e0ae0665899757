"""The options that say where the system is: `--data DIR`, or URLs, or the settings that agents use.

`--data` names a directory of `siltstone dev`. While `siltstone dev` runs there, the command attaches to it; otherwise
the command starts the Postgres of the directory for its own run. Without `--data` the options `--metadata` and
`--object-store` count first, then SILTSTONE_DATA, then SILTSTONE_METADATA_URL and SILTSTONE_OBJECT_STORE_URL, then the
file of `--config`. If none of them names a place, it is ./siltstone-data, where `siltstone dev` keeps everything.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from metadata.contract.store import MetadataStore
from metadata.urls import open_metadata
from runtime.clock import SystemClock
from runtime.errors import BadInputError
from runtime.ids import SystemIds
from runtime.settings.checks import is_memory
from runtime.settings.table import Settings
from siltstone.cli.options.data_option import DATA_OR_URLS, DEFAULT_DATA, data_option, unless_typed
from siltstone.cli.options.setting_options import read_settings, setting_options
from siltstone.embedded.attach import POSTGRES, attach, objects_url
from siltstone.embedded.run_file import read_run_file
from siltstone.ops.hint_options import NO_HINT_OPTIONS, HintOptions, hint_options_for
from siltstone.processes.places import place_of
from storage.cluster import Action, decide, decode_cluster_file
from storage.keys import CLUSTER_KEY, PROBE_PREFIX
from storage.objects import ObjectNotFoundError, ObjectStore
from storage.second_store import look
from storage.urls import open_store
from storage.wrappers.retrying import Retrying

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemOptions:
    """The place that the user named: a directory, or URLs. A URL that was not named is empty."""

    data: Path | None
    metadata_url: str = field(repr=False)
    object_store_url: str
    settings: Settings
    """Every setting of the command: from options, the environment and the file."""
    config: Path | None = None
    """The file of --config."""
    hints: HintOptions = NO_HINT_OPTIONS
    """The options that printed hints repeat, so that a hint can be run as it is printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Urls:
    """The URLs of a system. They are valid inside the `resolved` block that found them."""

    metadata: str = field(repr=False)
    object_store: str
    bootstrap: str = ""
    """HOST:PORT[,...] of the agents that run on the `--data` directory; empty when unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """The metadata and the store, both open."""

    metadata: MetadataStore
    store: ObjectStore


def system_options(command: Callable[..., T]) -> Callable[..., T]:
    """Add `--data`, `--metadata`, `--object-store`, `--config` and `--set`; the command gets them as `given`."""
    return data_option("The system in this directory of `siltstone dev`, running or not.")(url_options(command))


def url_options(command: Callable[..., T]) -> Callable[..., T]:
    """Add the options of `system_options` without `--data`."""

    @click.option(
        "--metadata",
        "metadata_url",
        metavar="URL",
        help="Postgres of the metadata: postgresql://USER@HOST:PORT/DB (metadata.url).",
    )
    @click.option(
        "--object-store",
        "object_store_url",
        metavar="URL",
        help="Object store of the records: s3://BUCKET/PREFIX or file:///DIR (object.store.url).",
    )
    @setting_options
    @wraps(command)
    def with_given(
        *args: Any,
        data: Path | None = None,
        metadata_url: str | None,
        object_store_url: str | None,
        config: Path | None,
        assignments: tuple[str, ...],
        **kwargs: Any,
    ) -> T:
        named = metadata_url, object_store_url, any(map(_is_place, assignments))
        data = unless_typed(data, *named, usage=DATA_OR_URLS)
        settings = read_settings(
            config, assignments, {"metadata.url": metadata_url, "object.store.url": object_store_url}
        )
        if data is None and not (settings.metadata_url or settings.object_store_url) and takes_data():
            data = default_data()
        given = SystemOptions(
            data=data,
            # With --data the directory names both places, whatever the environment or a file says.
            metadata_url=settings.metadata_url if data is None else "",
            object_store_url=place_of(settings) if data is None else "",
            settings=settings,
            config=config,
            hints=hint_options_for(
                data="" if data is None else str(data),
                metadata_url=metadata_url or "",
                object_store_url=object_store_url or "",
                config="" if config is None else str(config),
                assignments=assignments,
                runs=data is not None and read_run_file(data) is not None,
            ),
        )
        return command(*args, given=given, **kwargs)

    return with_given


@contextmanager
def resolved(given: SystemOptions) -> Generator[Urls]:
    """The URLs. The Postgres of a `--data` directory runs while the block does. Raises the errors of `attach`."""
    if given.data is None:
        yield Urls(metadata=given.metadata_url, object_store=given.object_store_url)
        return
    with attach(given.data) as attached:
        objects = attached.object_store_url
        # A running `siltstone dev` says itself whether it has a second store.
        if not attached.bootstrap:
            objects = place_of(replace(given.settings, object_store_url=objects))
        yield Urls(metadata=attached.metadata_url, object_store=objects, bootstrap=attached.bootstrap)


def resolved_store(given: SystemOptions) -> str:
    """The URL of the object store alone; no Postgres is started. Raises RunFileError."""
    if given.data is None:
        return given.object_store_url
    running = read_run_file(given.data)
    if running is not None:
        return running.object_store_url
    return place_of(replace(given.settings, object_store_url=objects_url(given.data)))


def check_named(urls: Urls) -> None:
    """Raises BadInputError unless both URLs name something that lasts. For those who open them on their own."""
    _named_metadata(urls.metadata)
    _named_store(urls.object_store)


@asynccontextmanager
async def opened_metadata(url: str) -> AsyncGenerator[MetadataStore]:
    """Raises BadInputError when `url` is empty, and the errors of opening the metadata."""
    metadata = open_metadata(_named_metadata(url))
    await metadata.open()
    try:
        yield metadata
    finally:
        await metadata.close()


@asynccontextmanager
async def opened_store(url: str) -> AsyncGenerator[ObjectStore]:
    """The store, with retries. A missing directory is an error and is not created, so that a typing error is noticed.

    Raises BadInputError when `url` is empty, and the errors of opening the store.
    """
    store = Retrying(open_store(_named_store(url), must_exist=True), SystemClock(), SystemIds())
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def opened(urls: Urls) -> AsyncGenerator[System]:
    """The metadata and the store, closed at the end of the block."""
    async with AsyncExitStack() as stack:
        metadata = await stack.enter_async_context(opened_metadata(urls.metadata))
        yield System(metadata=metadata, store=await stack.enter_async_context(opened_store(urls.object_store)))


async def same_cluster(system: System) -> tuple[str, Action]:
    """The cluster id, and what an agent would do about the cluster file in the store. Writes nothing.

    Raises ClusterMismatchError.
    """
    # The probe objects of `siltstone doctor` do not make a store a used one.
    is_empty = True
    async for stat in system.store.list():
        if not stat.key.startswith(PROBE_PREFIX):
            is_empty = False
            break
    try:
        stored = decode_cluster_file(await system.store.get(CLUSTER_KEY))
    except ObjectNotFoundError:
        stored = None
    identity = await system.metadata.cluster_identity()
    action = decide(identity.cluster_id, identity.store_bound, stored, is_empty)
    await look(system.store, cluster_id=identity.cluster_id, ids=SystemIds(), clock=SystemClock())
    return identity.cluster_id, action


def _is_place(assignment: str) -> bool:
    return assignment.partition("=")[0].strip() in ("metadata.url", "object.store.url")


POSTGRES_NAMES = "--metadata URL (postgresql://USER@HOST:PORT/DB)", "SILTSTONE_METADATA_URL"


def ways_to_name(option: str, variable: str, *, data: bool = True) -> str:
    """The remedy when no place is named. `data`: whether the command also takes --data."""
    ways = ["give --data DIR of `siltstone dev`", "set SILTSTONE_DATA"] if data else []
    return ", or ".join([*ways, f"{'' if data else 'give '}{option}", f"set {variable}"])


def _named_metadata(url: str) -> str:
    return _named(url, "the metadata", "--metadata URL", "SILTSTONE_METADATA_URL")


def _named_store(url: str) -> str:
    return _named(url, "the object store", "--object-store URL", "SILTSTONE_OBJECT_STORE_URL")


def _named(url: str, what: str, option: str, variable: str) -> str:
    if not url:
        raise BadInputError(
            f"no option or setting says where {what} is; nothing was done",
            remedy=ways_to_name(option, variable, data=takes_data()),
        )
    if is_memory(url):
        raise BadInputError(
            f"{option.split()[0]} memory:// is empty and ends with this command; nothing was done",
            remedy="name one that lasts: postgresql://... for the metadata, s3://... or file:///... for the store",
        )
    return url


def default_data() -> Path | None:
    """./siltstone-data, if `siltstone dev` has ever run there."""
    return DEFAULT_DATA if (DEFAULT_DATA / POSTGRES).is_dir() or read_run_file(DEFAULT_DATA) is not None else None


def takes_data() -> bool:
    """Whether the command that runs has the option --data."""
    context = click.get_current_context(silent=True)
    return context is None or any(parameter.name == "data" for parameter in context.command.params)
