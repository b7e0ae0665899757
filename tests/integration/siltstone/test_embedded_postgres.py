"""The embedded Postgres: start, restart, stop, and the start after a kill."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import stat
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from metadata.postgres.driver import DRIVER_ERRORS, open_connection
from siltstone.embedded.binaries import COPY_PREFIX, PostgresBinariesError, find_binaries
from siltstone.embedded.directory_lock import DataDirectoryInUseError
from siltstone.embedded.postgres import EmbeddedPostgres, EmbeddedPostgresError, postgres_processes
from siltstone.embedded.run_as import CannotRunAsError, namespace_prefix, reachable_by_others
from tests.fixtures.waiting import wait_until

FAST = {"fsync": "off"}
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="about running as root")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "pg"
    for pid in postgres_processes(tmp_path / "pg" / "data"):
        os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="session")
def made_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory to copy, so that few tests need initdb."""
    path = tmp_path_factory.mktemp("made") / "pg"
    with EmbeddedPostgres(path, settings=FAST):
        pass
    return path


@pytest.fixture
def made(made_database: Path, folder: Path) -> Path:
    shutil.copytree(made_database, folder)
    return folder


async def ask(url: str, query: str) -> object:
    connection = await open_connection(url, connect_timeout_s=10, command_timeout_s=10, settings={})
    try:
        return await connection.fetchval(query)
    finally:
        await connection.close()


async def test_it_starts_from_nothing_and_keeps_its_data_between_runs(folder: Path) -> None:
    with EmbeddedPostgres(folder) as postgres:
        url = postgres.url
        assert url.startswith("postgresql://siltstone:")
        assert await ask(url, "CREATE TABLE kept AS SELECT 7 AS n") is None
        assert await ask(url, "SHOW fsync") == "on"
        assert await ask(url, "SHOW server_encoding") == "UTF8"
        assert await ask(url, "SELECT datcollate FROM pg_database WHERE datname = 'siltstone'") == "C"
    with EmbeddedPostgres(folder) as postgres:
        assert await ask(postgres.url, "SELECT n FROM kept") == 7
        assert urlsplit(postgres.url).password == urlsplit(url).password


async def test_it_listens_on_loopback_tcp_alone_and_wants_the_password(made: Path) -> None:
    with EmbeddedPostgres(made, settings=FAST) as postgres:
        parts = urlsplit(postgres.url)
        assert parts.hostname == "127.0.0.1"
        assert await ask(postgres.url, "SHOW unix_socket_directories") == ""
        for wrong in (f"postgresql://siltstone@127.0.0.1:{parts.port}/siltstone",
                      f"postgresql://siltstone:guess@127.0.0.1:{parts.port}/siltstone"):  # fmt: skip
            with pytest.raises(DRIVER_ERRORS):
                await ask(wrong, "SELECT 1")
        assert stat.S_IMODE((made / "password").stat().st_mode) == 0o600
        assert stat.S_IMODE((made / "data").stat().st_mode) == 0o700


async def test_stop_leaves_no_process_even_with_a_client_in_a_transaction(made: Path) -> None:
    postgres = EmbeddedPostgres(made, settings=FAST)
    connection = await open_connection(postgres.start(), connect_timeout_s=10, command_timeout_s=10, settings={})
    await connection.execute("BEGIN")
    postgres.stop()
    assert postgres_processes(made / "data") == []
    assert not (made / "data" / "postmaster.pid").exists()
    postgres.stop()  # twice is harmless
    with pytest.raises(EmbeddedPostgresError, match="not running"):
        _ = postgres.pid
    connection.terminate()


def run_and_kill(folder: Path, *, data: str = "") -> int:
    """Start Postgres in another process and kill that process with -9. Returns the pid of the orphan."""
    program = textwrap.dedent(
        f"""
        from pathlib import Path
        from siltstone.embedded.postgres import EmbeddedPostgres
        postgres = EmbeddedPostgres(Path({str(folder)!r}), settings={FAST!r})
        postgres.start()
        print(postgres.pid, flush=True)
        input()
        """
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    process.kill()
    process.communicate()
    return pid


async def test_no_shared_memory_is_left_behind_after_a_kill_9(made: Path) -> None:
    """Found in the memory maps of its processes, because other servers of this machine come and go in /dev/shm."""
    with EmbeddedPostgres(made, settings=FAST) as postgres:
        assert await ask(postgres.url, "SHOW dynamic_shared_memory_type") == "mmap"
        pids = postgres_processes(made / "data")
        mapped = [line for pid in pids for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
        assert any("/pg_dynshmem/mmap." in line for line in mapped)
        assert [line for line in mapped if "/dev/shm/" in line] == []
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not postgres_processes(made / "data"))
    left = set((made / "data" / "pg_dynshmem").iterdir())
    assert left
    with EmbeddedPostgres(made, settings=FAST):
        assert left & set((made / "data" / "pg_dynshmem").iterdir()) == set()


def test_the_next_start_stops_the_orphan_of_a_killed_process(made: Path) -> None:
    orphan = run_and_kill(made)
    assert orphan in postgres_processes(made / "data")
    with EmbeddedPostgres(made, settings=FAST) as postgres:
        assert postgres.pid != orphan
        assert orphan not in postgres_processes(made / "data")
        wait_until(lambda: not Path(f"/proc/{orphan}").exists())


async def test_a_pid_file_whose_pid_belongs_to_somebody_else_is_seen_through(made: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        (made / "data" / "postmaster.pid").write_text(f"{stranger.pid}\n{made / 'data'}\n1700000000\n5432\n\n\n")
        with EmbeddedPostgres(made, settings=FAST) as postgres:
            assert await ask(postgres.url, "SELECT 1") == 1
        assert stranger.poll() is None, "a stranger was stopped"
        stranger.kill()


def test_another_postgres_is_never_stopped(made: Path, made_database: Path, tmp_path: Path) -> None:
    """Its pid is in our pid file and it is called postgres, but it works in another directory."""
    shutil.copytree(made_database, tmp_path / "other")
    with EmbeddedPostgres(tmp_path / "other", settings=FAST) as other:
        (made / "data" / "postmaster.pid").write_text(f"{other.pid}\n{made / 'data'}\n1700000000\n5432\n\n\n")
        with EmbeddedPostgres(made, settings=FAST):
            assert other.pid in postgres_processes(tmp_path / "other" / "data")


def test_a_second_process_on_the_directory_is_told_whose_it_is(made: Path) -> None:
    with (
        EmbeddedPostgres(made, settings=FAST) as postgres,
        pytest.raises(DataDirectoryInUseError, match=rf"{made} is in use by process {os.getpid()} "),
    ):
        EmbeddedPostgres(made, settings=FAST).start()
    assert postgres.url == ""
    with EmbeddedPostgres(made, settings=FAST):
        pass  # the refused start removed nothing


def test_a_crash_amid_making_the_database_leaves_no_half_of_one(made: Path) -> None:
    shutil.move(made / "data", made / "data.new-killed")
    (made / "data.new-killed" / "global" / "pg_control").unlink()
    with EmbeddedPostgres(made, settings=FAST):
        assert not (made / "data.new-killed").exists()


def test_data_of_a_version_that_is_not_at_hand_is_refused_clearly(made: Path) -> None:
    (made / "data" / "PG_VERSION").write_text("13\n")
    with pytest.raises(PostgresBinariesError, match=r"created by Postgres 13, .* --metadata"):
        EmbeddedPostgres(made, settings=FAST).start()


def test_a_failed_start_shows_the_end_of_the_log_and_leaves_nothing(made: Path) -> None:
    with pytest.raises(EmbeddedPostgresError, match=r'postgres\.log ends with:\n(.|\n)*unrecognized .*"no_such_thing"'):
        EmbeddedPostgres(made, settings={"no_such_thing": "1"}).start()
    assert postgres_processes(made / "data") == []
    with EmbeddedPostgres(made, settings=FAST):
        pass


def test_a_given_port_that_is_taken_is_an_error_that_names_it(made: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(EmbeddedPostgresError, match=f'could not bind .*"127.0.0.1".*\n(.|\n)*{port}'):
            EmbeddedPostgres(made, port=port, settings=FAST).start()


def test_a_long_path_is_no_hindrance(made_database: Path, tmp_path: Path) -> None:
    """The path of a unix socket is limited to 107 bytes; data directories may be longer."""
    folder = tmp_path / ("d" * 150)
    shutil.copytree(made_database, folder)
    with EmbeddedPostgres(folder, settings=FAST):
        pass


def test_variables_of_the_caller_do_not_lead_postgres_astray(made: Path) -> None:
    environ = {**os.environ, "PGDATA": "/nowhere", "PGPORT": "1", "LC_ALL": "xx_XX.UTF-8", "PGUSER": "someone"}
    with EmbeddedPostgres(made, settings=FAST, environ=environ):
        pass


# ---- as root -------------------------------------------------------------------------------------------------------


@pytest.fixture
def no_namespaces(tmp_path: Path) -> dict[str, str]:
    """An environment without `unshare`, as in a container that refuses user namespaces."""
    (tmp_path / "no-programs").mkdir()
    return {**os.environ, "PATH": str(tmp_path / "no-programs")}


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can reach; pytest's own temporary folders are not."""
    path = Path("/var/tmp") / f"siltstone-test-{os.getpid()}"
    path.mkdir(mode=0o755)
    yield path / "pg"
    for pid in postgres_processes(path / "pg" / "data"):
        os.kill(pid, signal.SIGKILL)
    shutil.rmtree(path)


def modes(path: Path) -> dict[str, tuple[int, int, int]]:
    return {str(p): (p.stat().st_mode, p.stat().st_uid, p.stat().st_gid) for p in (path, *path.parents)}


@ROOT_ONLY
async def test_root_runs_it_below_a_closed_folder_without_opening_any(tmp_path: Path) -> None:
    if namespace_prefix(os.environ) is None:
        pytest.skip("user namespaces are refused here")
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    before = modes(closed)
    with EmbeddedPostgres(closed / "pg", settings=FAST) as postgres:
        assert await ask(postgres.url, "SELECT 1") == 1
        assert (closed / "pg" / "data").stat().st_uid == 0
    assert modes(closed) == before


@ROOT_ONLY
async def test_without_namespaces_root_runs_it_as_nobody(open_folder: Path, no_namespaces: dict[str, str]) -> None:
    before = modes(open_folder.parent)
    with EmbeddedPostgres(open_folder, settings=FAST, environ=no_namespaces) as postgres:
        assert await ask(postgres.url, "SELECT 1") == 1
        assert Path(f"/proc/{postgres.pid}").stat().st_uid == (open_folder / "data").stat().st_uid != 0
        assert (open_folder / "password").stat().st_uid == 0
    assert modes(open_folder.parent) == before
    # and the owner stays the same if namespaces are possible later
    with EmbeddedPostgres(open_folder, settings=FAST) as postgres:
        assert Path(f"/proc/{postgres.pid}").stat().st_uid != 0


@ROOT_ONLY
async def test_binaries_that_nobody_cannot_reach_are_copied_and_the_copy_removed(
    open_folder: Path, no_namespaces: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    place_binaries_below(closed, monkeypatch)
    with EmbeddedPostgres(open_folder, settings=FAST, environ=no_namespaces) as postgres:
        assert await ask(postgres.url, "SELECT 1") == 1
        copy = Path((open_folder / "binaries").read_text().strip())
        assert copy.name.startswith(COPY_PREFIX)
        assert Path(os.readlink(f"/proc/{postgres.pid}/exe")).is_relative_to(copy)
    assert not copy.exists() and not (open_folder / "binaries").exists()


def place_binaries_below(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install = find_binaries().install
    package = install.parent
    shutil.copytree(install, folder / package.name / install.name, symlinks=True)
    (folder / package.name / "__init__.py").touch()
    shutil.copytree(package.with_name(f"{package.name}.libs"), folder / f"{package.name}.libs", symlinks=True)
    monkeypatch.syspath_prepend(folder)
    assert find_binaries().install.is_relative_to(folder)


@ROOT_ONLY
def test_without_namespaces_a_closed_folder_above_is_a_clear_error(
    tmp_path: Path, no_namespaces: dict[str, str]
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    before = modes(closed)
    with pytest.raises(CannotRunAsError, match=r"`nobody` cannot pass through .* --metadata"):
        EmbeddedPostgres(closed / "pg", settings=FAST, environ=no_namespaces).start()
    assert modes(closed) == before


@ROOT_ONLY
@pytest.mark.parametrize("uid", [pwd.getpwnam("nobody").pw_uid, 1_234_567])
def test_an_ordinary_user_runs_it_as_himself_and_one_without_a_name_in_a_namespace(open_folder: Path, uid: int) -> None:
    if reachable_by_others(find_binaries().install) is not None:
        pytest.skip("other users cannot reach the binaries here")
    if namespace_prefix(os.environ) is None:
        pytest.skip("user namespaces are refused here")
    open_folder.parent.chmod(0o777)
    ours, theirs = os.pipe()
    child = os.fork()  # in this interpreter, because the other user may not reach the standard library
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            with EmbeddedPostgres(open_folder, settings=FAST) as postgres:
                said = str(Path(f"/proc/{postgres.pid}").stat().st_uid)
        except BaseException as error:
            said = repr(error)
        os.write(theirs, said.encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(theirs)
    with os.fdopen(ours) as answer:
        assert answer.read() == str(uid)
