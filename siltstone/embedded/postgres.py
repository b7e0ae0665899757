"""An embedded Postgres: this process starts, watches and stops it. It listens on 127.0.0.1 and requires a password.

A data directory contains `data` (Postgres's own), `password` (0600), `postgres.log`, `lock` and, if the binaries had to
be copied for another user, `binaries` (the path of the copy). The steps of `start`:

1. Take `lock` (flock), so that two Siltstone processes never use one directory.
2. Stop every Postgres that a killed predecessor left on this directory. The pid in `postmaster.pid` alone proves
   nothing, because it may have been reused: a process counts if it is called `postgres` and works in `data`.
3. Create the database if there is none: in `data.new-*`, synced and renamed at the end, so that a crash never leaves
   half a database. The password is written before, so a finished database always has its own password.
4. Start `postgres` with all settings on its command line, and wait until it reports that it is ready.

A kill -9 of this process leaves Postgres running, because its agents may still be draining. Step 2 of the next start
ends it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from runtime.clock import Clock, SystemClock
from runtime.errors import UnavailableError
from siltstone.embedded.binaries import COPY_PREFIX, PostgresBinaries, binaries_in_copy, copy_binaries, find_binaries
from siltstone.embedded.directory_lock import DirectoryLock
from siltstone.embedded.run_as import RunAs, choose_run_as, reachable_by_others

USER = "siltstone"
DATABASE = "siltstone"
HOST = "127.0.0.1"
START_MS = 60_000
"""The time that Postgres may take to be ready, including the crash recovery of a large database."""
FAST_STOP_MS = 15_000
IMMEDIATE_STOP_MS = 5_000
LOG_BYTES_MAX = 16 * 1024 * 1024
LOG_LINES_SHOWN = 12
PORT_TRIES = 5
WAL_SEGMENT_BYTES = 16 << 20
"""Postgres makes its write-ahead log in files of this size, and stops when it cannot make the next one."""
_POLL_S = 0.01

DYNAMIC_SHARED_MEMORY = "mmap"

SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        "listen_addresses": HOST,
        "unix_socket_directories": "",  # the path of a socket is limited to 107 bytes; a data directory may be longer
        "max_connections": "100",
        "shared_buffers": "64MB",
        # Shared memory as files in the data directory, which the next start removes. Segments in /dev/shm would stay
        # for ever after a SIGKILL.
        "dynamic_shared_memory_type": DYNAMIC_SHARED_MEMORY,
        "fsync": "on",
        "synchronous_commit": "on",
        "min_wal_size": "64MB",
        "max_wal_size": "512MB",
        "checkpoint_timeout": "15min",
        "wal_compression": "on",
        "wal_level": "replica",
        "max_wal_senders": "0",
        "max_logical_replication_workers": "0",
        "autovacuum_naptime": "15s",
        "jit": "off",
        "timezone": "UTC",
        "logging_collector": "off",
        "log_checkpoints": "off",
        # Arguments of statements are keys of users too, whatever else is asked to be logged.
        "log_parameter_max_length": "0",
        "log_parameter_max_length_on_error": "0",
        "log_line_prefix": "%m [%p] ",
    }
)

INITDB_OPTIONS = (
    "--no-sync",  # everything is synced once, at the end
    "--locale=C",
    "--encoding=UTF8",
    "--data-checksums",
    "--auth=scram-sha-256",
    f"--username={USER}",
    f"--set=dynamic_shared_memory_type={DYNAMIC_SHARED_MEMORY}",
    # Iterations slow down the guessing of a weak password. Ours has 192 random bits, and the client pays for the
    # iterations at each new connection: the default of 4,096 doubles its CPU time.
    "--set=scram_iterations=1",
)


class EmbeddedPostgresError(UnavailableError):
    """Postgres did not start; the message ends with the last lines of its log."""


class EmbeddedPostgres:
    """One Postgres on `data_dir`. Start it once, stop it once. All calls block, usually for well below a second.

    Args:
        data_dir: our folder; created with mode 0711 if it is missing.
        port: 0: any free port.
        settings: more settings of `postgres`; they override our own.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        port: int = 0,
        settings: Mapping[str, str] = MappingProxyType({}),
        environ: Mapping[str, str] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.data_dir = data_dir.absolute()
        self._data = self.data_dir / "data"
        self._log = self.data_dir / "postgres.log"
        self._asked_port = port
        self._settings = {**SETTINGS, **settings}
        self._environ = dict(os.environ if environ is None else environ)
        self._clock: Clock = SystemClock() if clock is None else clock
        self._lock = DirectoryLock(self.data_dir)
        self._process: subprocess.Popen[bytes] | None = None
        self._copy: Path | None = None
        self._log_start = 0
        self._url = ""

    @property
    def url(self) -> str:
        """`postgresql://siltstone:PASSWORD@127.0.0.1:PORT/siltstone`; empty before `start`."""
        return self._url

    @property
    def pid(self) -> int:
        """The pid of the running postmaster. Raises EmbeddedPostgresError if it does not run."""
        if self._process is None or self._process.poll() is not None:
            raise EmbeddedPostgresError(f"Postgres on {self.data_dir} is not running")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def had_no_space(self) -> bool:
        """Postgres ended for want of disk space, by the last lines of its log or by the space that is left."""
        system = os.statvfs(self.data_dir)
        return is_disk_full("\n".join(self._last_lines())) or system.f_bavail * system.f_frsize < WAL_SEGMENT_BYTES

    def __enter__(self) -> EmbeddedPostgres:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> str:
        """Start Postgres. Create the database first if there is none. Returns `url`.

        Raises DataDirectoryInUseError, PostgresBinariesError (also for data of another major version),
        CannotRunAsError, EmbeddedPostgresError.
        """
        if self._process is not None:
            raise EmbeddedPostgresError(f"Postgres on {self.data_dir} was started already")
        try:
            self.data_dir.mkdir(mode=0o711, parents=True, exist_ok=True)
        except OSError as error:
            raise EmbeddedPostgresError(
                f"cannot create {self.data_dir}: {error.strerror}", remedy="choose another directory with --data"
            ) from error
        self._lock.acquire()
        try:
            # Under the lock, before the binaries are chosen: a leftover of a killed run still holds the data directory.
            self._stop_leftovers()
            run_as = choose_run_as(self._data, environ=self._environ)
            binaries = self._binaries(run_as)
            if not (self._data / "PG_VERSION").exists():
                self._initialize(binaries, run_as)
            port = self._launch(binaries, run_as)
        except BaseException:
            self.stop()
            raise
        password = (self.data_dir / "password").read_text(encoding="ascii").strip()
        self._url = f"postgresql://{USER}:{password}@{HOST}:{port}/{DATABASE}"
        return self._url

    def stop(self) -> None:
        """Stop Postgres: fast (open transactions roll back), then immediately, then by SIGKILL. Safe to repeat."""
        process, self._process = self._process, None
        if process is not None:
            for signal_number, wait_ms in (
                (signal.SIGINT, FAST_STOP_MS),
                (signal.SIGQUIT, IMMEDIATE_STOP_MS),
                (signal.SIGKILL, None),
            ):
                process.send_signal(signal_number)
                try:
                    process.wait(None if wait_ms is None else wait_ms / 1000)
                    break
                except subprocess.TimeoutExpired:
                    continue
        if self._lock.held:
            self._stop_leftovers()
            self._lock.release()
        self._url = ""

    # ---- leftovers of a killed predecessor -------------------------------------------------------------------------

    def _stop_leftovers(self) -> None:
        """Remove the leftovers of a killed predecessor: stop its Postgres, then delete its copy of the binaries."""
        pid_file = self._data / "postmaster.pid"
        for signal_number, wait_ms in ((signal.SIGQUIT, IMMEDIATE_STOP_MS), (signal.SIGKILL, IMMEDIATE_STOP_MS)):
            pids = postgres_processes(self._data)
            if not pids:
                break
            if signal_number == signal.SIGQUIT and (postmaster := _first_line_pid(pid_file)) in pids:
                os.kill(postmaster, signal.SIGINT)  # a fast shutdown saves the next start a crash recovery
                if self._gone(FAST_STOP_MS):
                    break
            for pid in postgres_processes(self._data):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal_number)
            if self._gone(wait_ms):
                break
        if pids := postgres_processes(self._data):
            raise EmbeddedPostgresError(
                f"Postgres process {pids[0]} on {self._data} does not end, not even after SIGKILL",
                remedy="wait until the disk answers again, or restart the machine",
            )
        # No Postgres works here any more, so the pid in this file can only belong to a foreign process.
        pid_file.unlink(missing_ok=True)
        self._remove_copy()

    def _gone(self, wait_ms: float) -> bool:
        deadline_ms = self._clock.monotonic_ms() + wait_ms
        while postgres_processes(self._data):
            if self._clock.monotonic_ms() > deadline_ms:
                return False
            time.sleep(_POLL_S)
        return True

    # ---- binaries --------------------------------------------------------------------------------------------------

    def _binaries(self, run_as: RunAs) -> PostgresBinaries:
        version = self._data / "PG_VERSION"
        binaries = find_binaries(_major_of(version) if version.exists() else None)
        if run_as.other_user is None or reachable_by_others(binaries.install.resolve()) is None:
            return binaries
        self._copy = copy_binaries(binaries)
        (self.data_dir / "binaries").write_text(f"{self._copy}\n", encoding="utf-8")
        return binaries_in_copy(self._copy, binaries)

    def _remove_copy(self) -> None:
        note = self.data_dir / "binaries"
        if not note.exists():
            return
        folder = Path(note.read_text(encoding="utf-8").strip())
        # The note is a plain file, so delete only a folder that looks like one of our copies.
        ours = folder.name.startswith(COPY_PREFIX) and folder.parent == Path(tempfile.gettempdir())
        if ours and folder.is_dir() and not folder.is_symlink() and folder.stat().st_uid == os.geteuid():
            shutil.rmtree(folder)
        note.unlink()
        self._copy = None

    # ---- creating the database -------------------------------------------------------------------------------------

    def _initialize(self, binaries: PostgresBinaries, run_as: RunAs) -> None:
        for unfinished in self.data_dir.glob("data.new-*"):
            shutil.rmtree(unfinished)
        if self._data.exists() and any(self._data.iterdir()):
            raise EmbeddedPostgresError(
                f"{self._data} is neither empty nor a Postgres data directory; nothing was changed",
                remedy="move it away, or choose another directory with --data",
            )
        new = Path(tempfile.mkdtemp(prefix="data.new-", dir=self.data_dir))
        run_as.give(new)
        password = secrets.token_urlsafe(24)  # a secret must not come from a seeded source
        _write_private(self.data_dir / "password", f"{password}\n")
        password_copy = self.data_dir / "password.initdb"
        _write_private(password_copy, f"{password}\n")
        run_as.give(password_copy)
        try:
            self._run(run_as, [binaries.initdb, *INITDB_OPTIONS, f"--pwfile={password_copy}", f"--pgdata={new}"])
        finally:
            password_copy.unlink()
        (new / "pg_hba.conf").write_text(f"host all all {HOST}/32 scram-sha-256\n", encoding="ascii")
        self._run(
            run_as,
            [binaries.postgres, "--single", "-D", new, "-c", "fsync=off", "-c", "timezone=UTC", "postgres"],
            stdin=f"CREATE DATABASE {DATABASE}\n",
        )
        if self._settings["fsync"] != "off":
            self._run(run_as, [binaries.initdb, "--sync-only", f"--pgdata={new}"])
        if self._data.exists():
            self._data.rmdir()
        new.rename(self._data)
        _sync_folder(self.data_dir)

    def _run(self, run_as: RunAs, argv: list[str | Path], *, stdin: str = "") -> None:
        done = subprocess.run(  # noqa: S603
            run_as.command(argv),
            input=stdin.encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=self._child_environ(),
            cwd="/",
            check=False,
            start_new_session=True,  # a Ctrl-C must not end initdb, which would look like a failure of initdb
            **run_as.popen(),
        )
        output = done.stdout.decode(errors="replace")
        # single-user Postgres exits with 0 after a failed statement
        if done.returncode != 0 or "ERROR:" in output or "FATAL:" in output:
            if is_disk_full(output):
                raise disk_full(self.data_dir, f"{Path(argv[0]).name} failed", output.splitlines())
            last = "\n".join(output.strip().splitlines()[-LOG_LINES_SHOWN:])
            raise EmbeddedPostgresError(f"{Path(argv[0]).name} failed with status {done.returncode}:\n{last}")

    # ---- running it ------------------------------------------------------------------------------------------------

    def _launch(self, binaries: PostgresBinaries, run_as: RunAs) -> int:
        for attempt in range(PORT_TRIES):
            port = self._asked_port or _free_port()
            if self._ready(binaries, run_as, port):
                return port
            # Another process may have taken the free port in the meantime: try another one.
            taken = any("could not bind" in line for line in self._last_lines())
            if not (taken and self._asked_port == 0 and attempt + 1 < PORT_TRIES):
                break
        if self.had_no_space:
            raise disk_full(self.data_dir, "Postgres did not start", self._last_lines())
        lines = "\n".join(self._last_lines())
        raise EmbeddedPostgresError(f"Postgres on {self._data} did not start; {self._log} ends with:\n{lines}")

    def _ready(self, binaries: PostgresBinaries, run_as: RunAs, port: int) -> bool:
        """Start `postgres` on this port. True when it is ready, False if it ended by itself."""
        argv: list[str | Path] = [binaries.postgres, "-D", self._data]
        for name, value in {**self._settings, "port": str(port)}.items():
            argv += ["-c", f"{name}={value}"]
        if self._log.exists() and self._log.stat().st_size > LOG_BYTES_MAX:
            self._log.replace(self._log.with_name("postgres.log.1"))
        with os.fdopen(os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb") as log:
            self._log_start = log.seek(0, os.SEEK_END)
            self._process = subprocess.Popen(  # noqa: S603
                run_as.command(argv),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._child_environ(),
                cwd="/",
                start_new_session=True,  # Ctrl-C must not stop Postgres before the agents have drained
                **run_as.popen(),
            )
        deadline_ms = self._clock.monotonic_ms() + START_MS
        while self._process.poll() is None:
            lines = _lines(self._data / "postmaster.pid")
            # line 1 is the pid, line 8 the state (src/include/utils/pidfile.h)
            if len(lines) >= 8 and lines[0].strip() == str(self._process.pid) and lines[7].strip() == "ready":
                return True
            if self._clock.monotonic_ms() > deadline_ms:
                raise EmbeddedPostgresError(
                    f"Postgres on {self._data} is not ready after {START_MS / 1000:.0f} s", remedy=f"see {self._log}"
                )
            time.sleep(_POLL_S)
        self._process = None
        return False

    def _last_lines(self) -> list[str]:
        with self._log.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace").splitlines()[-LOG_LINES_SHOWN:]

    def _child_environ(self) -> dict[str, str]:
        kept = {name: value for name, value in self._environ.items() if not name.startswith(("PG", "LC_", "LANG"))}
        return {**kept, "LC_ALL": "C"}


def is_disk_full(said: str) -> bool:
    """Postgres and libc say it in these words; LC_ALL is C."""
    return os.strerror(errno.ENOSPC) in said


def disk_full(folder: Path, what: str, said: Sequence[str]) -> EmbeddedPostgresError:
    """Quotes only the last line about space. Others may hold Postgres's hint to restore a backup, which would lose
    records."""
    named = [line.strip() for line in said if is_disk_full(line)] or [f"its log is {folder / 'postgres.log'}"]
    return EmbeddedPostgresError(
        f"disk full at {folder}: {what}: {named[-1]}",
        remedy="free space and start again; acknowledged records are safe, nothing needs to be restored",
    )


def postgres_processes(data: Path) -> list[int]:
    """The pids of all processes called `postgres` with `data` as working directory. Every process of a Postgres has it.

    A process that this user may not inspect belongs to another user and does not count.
    """
    try:
        wanted = data.stat()
    except FileNotFoundError:
        return []
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            here = (entry / "cwd").stat()
            name = (entry / "comm").read_text().strip()
        except OSError:
            continue
        if name == "postgres" and (here.st_dev, here.st_ino) == (wanted.st_dev, wanted.st_ino):
            found.append(int(entry.name))
    return found


def _first_line_pid(pid_file: Path) -> int:
    lines = _lines(pid_file)
    return int(lines[0]) if lines and lines[0].strip().isdigit() else -1


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []


def _major_of(version: Path) -> int:
    text = version.read_text(encoding="ascii", errors="replace").strip()
    if not text.isdigit():
        raise EmbeddedPostgresError(f"{version} contains {text!r}, which is not a version of Postgres")
    return int(text)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _write_private(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
