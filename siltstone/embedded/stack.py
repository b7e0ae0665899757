"""`siltstone dev`: a whole stack as one process tree.

Start, in this order: parse the URLs, which touches nothing; lock the directory; check the ports (the agents of a killed
predecessor may have to release them first); start Postgres (unless a metadata URL is given); upgrade the schema; start
agents and compactors; write `run.json`; call `on_ready`. Clients need not wait until a compactor has compiled its
kernels. When all compactors are ready, `run.json` is written again with their addresses, and `on_compactors` is called.
Stop: the agents drain, the compactors give their merges back, `run.json` is removed, Postgres stops.

Agents and compactors are children with a *lifeline*: a pipe whose other end only this process holds. If this process is
killed, they see the end of the pipe, drain and exit; the next start stops the Postgres that was left. `memory://`
exists only inside one process, so with it one agent and one compactor run in this process. All children have their own
sessions: Ctrl-C reaches only this process, which stops them in order; a second Ctrl-C kills them.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import siltstone
from metadata.contract.store import MetadataStore
from runtime.clock import SystemClock
from runtime.errors import BadInputError, SiltstoneError
from runtime.logging import get_logger
from runtime.passwords import HOW_TO_WRITE
from runtime.settings.checks import is_memory
from runtime.settings.listeners import listeners_of
from runtime.settings.loading import (
    DATA_VARIABLE,
    ENVIRONMENT_PREFIX,
    VARIABLES_THAT_ARE_NO_SETTINGS,
    settings_environment,
)
from runtime.settings.table import Settings
from runtime.settings.values import SettingsError
from siltstone.embedded.attach import OBJECTS, POSTGRES, data_directory, objects_url
from siltstone.embedded.children import await_ports, child_settings, is_free, with_metrics_ports
from siltstone.embedded.directory_lock import DirectoryLock
from siltstone.embedded.postgres import EmbeddedPostgres
from siltstone.embedded.run_file import RunFile, remove_run_file, run_file_exists, started_ticks, write_run_file
from siltstone.embedded.secure import Admin, keep_admin, write_files
from siltstone.processes.places import place_of
from siltstone.processes.running import RunningAgent, RunningCompactor
from siltstone.processes.stopping import stop_signals, unless

_log = get_logger(__name__)

MEMORY = "memory://"
KILL_AFTER_DRAIN_MS = 10_000
"""After `drain.timeout.ms` an agent may take this much longer to end; then it is killed."""

PREDECESSOR_MS = 10_000
"""The agents of a killed predecessor have this long to release their ports."""
POSTGRES_POLL_MS = 250
"""Time between two looks whether Postgres still runs."""


class PostgresDiedError(SiltstoneError):
    """The embedded Postgres ended by itself."""


class AgentDiedError(SiltstoneError):
    """A child agent, or compactor, ended by itself."""


Ready = Callable[[Sequence[RunningAgent]], None]
"""Called once, with all agents, when clients can connect."""

CompactorsReady = Callable[[Sequence[RunningCompactor]], None]
"""Called once, with all compactors that are separate processes, when all are ready. Not called if there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackSize:
    """The number of agents and compactors of a stack."""

    agents: int = 1
    compactors: int = 1
    zones: Sequence[str] = ()
    """Availability zones, assigned to the agents in turn."""


async def run_stack(
    settings: Settings,
    *,
    data: Path,
    size: StackSize,
    on_ready: Ready,
    on_compactors: CompactorsReady = lambda _: None,
    secure: bool = False,
) -> None:
    """Run until SIGTERM, SIGINT or SIGHUP.

    Raises the errors of a bad URL, DataDirectoryInUseError, AddressInUseError, AgentDiedError, and the errors of
    starting Postgres, migrating and starting the agent. Everything that was started is stopped first. `secure`: the
    settings are of `siltstone.embedded.secure`, whose files and super user are made before the agents start.
    """
    memory = is_memory(settings.metadata_url) or is_memory(settings.object_store_url)
    # Metadata and objects refer to each other, so both or neither may be in memory. Settings refuses one of each.
    if memory:
        settings = replace(
            settings,
            metadata_url=settings.metadata_url or MEMORY,
            object_store_url=settings.object_store_url or MEMORY,
        )
    _check_urls(settings)
    for count, what in ((size.agents, "agents"), (size.compactors, "compactors")):
        if memory and count > 1:
            raise BadInputError(
                f"memory:// exists only inside one process, so {count} {what} cannot share it; nothing was started",
                remedy=f"pass --{what} 1, or other URLs",
            )
    stopping, impatient = asyncio.Event(), asyncio.Event()
    with stop_signals(stopping, impatient):
        async with AsyncExitStack() as stack:
            data = _take_directory(data, stack)
            each = child_settings(settings, size.agents, size.compactors, size.zones)
            # A `run.json` under our lock was left by a killed predecessor, whose agents may still hold the ports.
            await await_ports(each, stopping, wait_ms=PREDECESSOR_MS if run_file_exists(data) else 0)
            admin = write_files(settings, data, SystemClock().wall_ms()) if secure and not stopping.is_set() else None
            is_ours = not settings.metadata_url
            if not stopping.is_set():
                settings = await _places(settings, data, stack, stopping, impatient)
            if stopping.is_set():
                return
            if admin is not None:
                async with _metadata(settings.metadata_url) as metadata:
                    await keep_admin(metadata.security, admin, is_ours=is_ours)
            each = child_settings(settings, size.agents, size.compactors, size.zones)
            each = with_metrics_ports(each, size.agents, is_free=is_free)
            telling = _Telling(settings, data, on_ready, on_compactors, stack, admin)
            if memory:
                await _run_here(each[0], telling.agents_ready, stopping, compact=size.compactors > 0)
            else:
                await _run_children(each[: size.agents], each[size.agents :], telling, stopping, impatient)


async def _run_here(settings: Settings, ready: Ready, stopping: asyncio.Event, *, compact: bool) -> None:
    from siltstone.processes.agent import serve_agent  # usually only the children load it

    beside = None
    if compact:
        from siltstone.processes.compactor import compactor_beside

        beside = compactor_beside
    await serve_agent(settings, on_ready=lambda running: ready([running]), stopping=stopping, beside=beside)


# ---- directory, ports, Postgres ------------------------------------------------------------------------------------


def _check_urls(settings: Settings) -> None:
    """Parse the given URLs, so that a mistyped one is an error before anything is started or written."""
    from metadata.urls import open_metadata  # loads SQLAlchemy; `--help` must not
    from storage.urls import joined_url, parse_store_url

    if settings.object_store_url:
        parse_store_url(settings.object_store_url)
    # Where the first URL is left out, the directory of the data takes its place: any other one will do here.
    joined_url(
        settings.object_store_url or "file:///objects",
        settings.produce_store_url,
        writes=settings.produce_store_writes,
    )
    if settings.metadata_url:
        try:
            _ = urlsplit(settings.metadata_url).port
        except ValueError:  # not chained: its message may contain a part of the password
            raise SettingsError(
                "metadata.url cannot be read: the text after the ':' of the host is not a port",
                remedy=HOW_TO_WRITE,
            ) from None
        open_metadata(settings.metadata_url)  # parses the URL; only its `open` would connect


def _take_directory(data: Path, stack: AsyncExitStack) -> Path:
    """Create and lock the directory. Returns its absolute path."""
    data = data_directory(data)
    try:
        # 0711: a Postgres that must run as `nobody` can pass through to its folder, but nobody can list this one
        data.mkdir(mode=0o711, parents=True, exist_ok=True)
    except OSError as error:
        raise BadInputError(
            f"cannot create {data}: {error.strerror}", remedy="choose another directory with --data"
        ) from error
    lock = DirectoryLock(data)
    lock.acquire()
    stack.callback(lock.release)
    return data


async def _places(
    settings: Settings, data: Path, stack: AsyncExitStack, stopping: asyncio.Event, impatient: asyncio.Event
) -> Settings:
    """Fill in the URLs that were not given, and upgrade the schema, unless a stop signal came in the meantime."""
    if not settings.object_store_url:
        settings = replace(settings, object_store_url=objects_url(data))
        (data / OBJECTS).mkdir(mode=0o700, exist_ok=True)
    if not settings.metadata_url:
        postgres = EmbeddedPostgres(data / POSTGRES)
        # Pushed before the start, so that a Postgres that came up halfway is stopped too.
        stack.push_async_callback(asyncio.to_thread, postgres.stop)
        settings = replace(settings, metadata_url=await asyncio.to_thread(postgres.start))
        _log.info("postgres ready", pid=postgres.pid, data=str(data / POSTGRES))
        death = asyncio.create_task(_death_of(postgres, data, stopping, impatient))
        # Pushed after the stop of Postgres, so it runs before: otherwise that stop would look like a death.
        stack.push_async_callback(_stop_watching, death)
    if not is_memory(settings.metadata_url) and not stopping.is_set():
        from metadata.migrations.migrate import migrate_async  # half a second of imports that memory:// does not need

        await migrate_async(settings.metadata_url)
    return settings


@asynccontextmanager
async def _metadata(url: str) -> AsyncGenerator[MetadataStore]:
    from metadata.urls import open_metadata

    metadata = open_metadata(url)
    await metadata.open()
    try:
        yield metadata
    finally:
        await metadata.close()


async def _death_of(postgres: EmbeddedPostgres, data: Path, stopping: asyncio.Event, impatient: asyncio.Event) -> None:
    """Watch Postgres. Ends only by raising PostgresDiedError, after a stop at once: no agent can drain without it."""
    clock = SystemClock()
    while postgres.is_running:
        await clock.sleep_ms(POSTGRES_POLL_MS)
    _log.error("postgres died", data=str(data / POSTGRES))
    stopping.set()
    impatient.set()
    if postgres.had_no_space:
        raise PostgresDiedError(
            "disk full: Postgres ended by itself; everything was stopped, and all acknowledged records are safe",
            remedy="free space, then start again; nothing needs to be restored",
        )
    raise PostgresDiedError(
        "Postgres ended by itself; everything was stopped, and all acknowledged records are safe",
        remedy=f"look for the reason in {data / POSTGRES / 'postgres.log'}, then start again",
    )


async def _stop_watching(death: asyncio.Task[None]) -> None:
    if not death.done():
        death.cancel()
    with suppress(asyncio.CancelledError):
        # If Postgres has died, this raises PostgresDiedError, which becomes the error of the whole stack.
        await death


class _Telling:
    """Reports started agents and compactors: first in `run.json`, then to the callbacks."""

    def __init__(
        self,
        settings: Settings,
        data: Path,
        on_ready: Ready,
        on_compactors: CompactorsReady,
        stack: AsyncExitStack,
        admin: Admin | None,
    ) -> None:
        """`stack` removes `run.json` at the end."""
        self._data, self._stack = data, stack
        self._on_ready, self._on_compactors = on_ready, on_compactors
        self._run = RunFile(
            pid=os.getpid(),
            started_ticks=started_ticks(os.getpid()) or 0,
            bootstrap="",
            metadata_url=settings.metadata_url,
            object_store_url=place_of(settings),
            metrics_url="",
            metrics_urls=(),
            client_config="" if admin is None else str(admin.properties),
        )

    def agents_ready(self, running: Sequence[RunningAgent]) -> None:
        urls = tuple(agent.metrics_url for agent in running if agent.metrics_url)
        bootstrap = ",".join(agent.bootstrap for agent in running)
        self._run = replace(self._run, bootstrap=bootstrap, metrics_url=urls[0] if urls else "", metrics_urls=urls)
        # Before the file is written, so that a write that fails leaves nothing behind.
        self._stack.callback(remove_run_file, self._data)
        write_run_file(self._data, self._run)
        self._on_ready(running)

    def compactors_ready(self, running: Sequence[RunningCompactor]) -> None:
        urls = tuple(compactor.metrics_url for compactor in running if compactor.metrics_url)
        self._run = replace(self._run, compactor_metrics_urls=urls)
        write_run_file(self._data, self._run)
        self._on_compactors(running)


# ---- children ------------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class _Child:
    role: Literal["agent", "compactor"]
    number: int
    address: str
    """The address that was asked for and, once the agent reports it, the actual one; empty for a compactor."""
    process: asyncio.subprocess.Process

    @property
    def name(self) -> str:
        where = f", {self.address}" if self.address else ""
        return f"{self.role} {self.number} (process {self.process.pid}{where})"


async def _run_children(
    agents: Sequence[Settings],
    compactors: Sequence[Settings],
    telling: _Telling,
    stopping: asyncio.Event,
    impatient: asyncio.Event,
) -> None:
    their_end, our_end = os.pipe()  # a child inherits neither end unless it is passed on
    children: list[_Child] = []
    try:
        for number, settings in enumerate(agents, 1):
            children.append(await _spawn("agent", number, settings, their_end))
        running = await unless(stopping, asyncio.gather(*map(_await_ready, children)))
        for number, settings in enumerate(compactors if running is not None else (), 1):
            children.append(await _spawn("compactor", number, settings, their_end))
        if running is not None:
            telling.agents_ready(running)
            await unless(stopping, _first_death(children, telling))
    finally:
        drain_ms = agents[0].drain_notice_ms + agents[0].drain_timeout_ms
        await _stop_children(children, impatient, grace_ms=drain_ms + KILL_AFTER_DRAIN_MS)
        os.close(our_end)  # only now: the end of the lifeline would make the children drain
        os.close(their_end)


async def _spawn(role: Literal["agent", "compactor"], number: int, settings: Settings, lifeline: int) -> _Child:
    """Start a child. Its settings go into the environment: every user of the machine can read a command line, and the
    settings contain a password."""
    environ = {
        name: value
        for name, value in os.environ.items()
        # SILTSTONE_DATA would say to a child where it finds what its settings already name.
        if not name.startswith(ENVIRONMENT_PREFIX) or name in VARIABLES_THAT_ARE_NO_SETTINGS - {DATA_VARIABLE}
    }
    root = str(Path(siltstone.__file__).parents[1])
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, (root, environ.get("PYTHONPATH"))))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",  # a file in the working directory must not replace one of our modules
        "-m",
        "siltstone",
        role,
        "--lifeline",
        str(lifeline),
        env={**environ, **settings_environment(settings)},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,  # the child prints its addresses there
        pass_fds=(lifeline,),
        start_new_session=True,
    )
    address = listeners_of(settings)[0].address if role == "agent" else ""
    return _Child(role=role, number=number, address=address, process=process)


async def _await_ready(child: _Child) -> RunningAgent:
    """Read the addresses that `siltstone agent` prints. Raises AgentDiedError."""
    said = await _said(child, "bootstrap")
    child.address = said["bootstrap"]
    return RunningAgent(bootstrap=said["bootstrap"], metrics_url=said["metrics"])


async def _await_compactor(child: _Child) -> RunningCompactor:
    """Read the node id and address that `siltstone compactor` prints. Raises AgentDiedError."""
    said = await _said(child, "compactor")
    return RunningCompactor(node_id=int(said["compactor"]), metrics_url=said["metrics"])


async def _said(child: _Child, name: str) -> Mapping[str, str]:
    """Read the lines `name: VALUE` and `metrics: URL`. Raises AgentDiedError; the child prints its error to the shared
    stderr."""
    if child.process.stdout is None:
        raise AgentDiedError(f"{child.name} has no output")
    said: dict[str, str] = {}
    while not {name, "metrics"} <= said.keys():
        line = (await child.process.stdout.readline()).decode(errors="replace")
        if not line:
            code = await child.process.wait()
            raise AgentDiedError(
                f"{child.name} ended with {_status(code)} before it was ready; everything was stopped",
                remedy="its own error is printed above",
            )
        key, _, value = line.strip().partition(": ")
        said[key.rstrip(":")] = value
    return said


async def _first_death(children: Sequence[_Child], telling: _Telling) -> None:
    """Wait for the first death of a child. Ends only by raising AgentDiedError. Meanwhile report ready compactors."""

    async def death(child: _Child) -> None:
        code = await child.process.wait()
        raise AgentDiedError(
            f"{child.name} ended with {_status(code)}, so everything was stopped; all acknowledged records are safe",
            remedy="look for the reason in its last messages above, then start again",
        )

    waits = [asyncio.create_task(death(child)) for child in children]
    waits.append(asyncio.create_task(_tell_compactors(children, telling)))
    try:
        await asyncio.gather(*waits)
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


async def _tell_compactors(children: Sequence[_Child], telling: _Telling) -> None:
    """Wait until all compactors are ready, then report them. Raises AgentDiedError if one ends before that."""
    compactors = [child for child in children if child.role == "compactor"]
    if compactors:
        telling.compactors_ready(await asyncio.gather(*map(_await_compactor, compactors)))


async def _stop_children(children: Sequence[_Child], impatient: asyncio.Event, *, grace_ms: int) -> None:
    """Send SIGTERM to all at once; send SIGKILL to those that do not end in time, or after a second stop signal."""
    for child in children:
        if child.process.returncode is None:
            child.process.send_signal(signal.SIGTERM)
    try:
        async with asyncio.timeout(grace_ms / 1000):
            await unless(impatient, asyncio.gather(*(child.process.wait() for child in children)))
    except TimeoutError:
        _log.error("children did not end in time", waited_ms=grace_ms)
    for child in children:
        if child.process.returncode is None:
            why = "told not to wait" if impatient.is_set() else "did not end in time"
            _log.warning(f"{child.role} killed", child=child.name, why=why)
            child.process.kill()
            await child.process.wait()


def _status(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
