"""Cases that only a directory has: modes, leftovers, full disks, directories that come and go."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from storage.keys import BadKeyError
from storage.local import LocalStore
from storage.objects import ObjectNotFoundError, StoreMisconfiguredError
from storage.parts import Parts, crc32c_of
from wire.crc import crc32c

ROOT = Path(__file__).parents[3]


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[LocalStore]:
    opened = LocalStore(tmp_path / "deep" / "store")
    await opened.open()
    yield opened
    await opened.close()


async def put(store: LocalStore, key: str, body: bytes = b"x") -> None:
    await store.put_if_absent(key, body, crc32c=crc32c(body))


def files_in(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


async def test_files_and_directories_are_ours_alone(store: LocalStore, tmp_path: Path) -> None:
    root = tmp_path / "deep" / "store"
    await put(store, "l0/aa/k")
    assert (root / "l0/aa/k").stat().st_mode & 0o777 == 0o600
    for directory in (root, root / ".tmp", root / "l0", root / "l0/aa"):
        assert directory.stat().st_mode & 0o777 == 0o700


async def test_a_put_leaves_nothing_in_the_temporary_directory(store: LocalStore, tmp_path: Path) -> None:
    await put(store, "k")
    with pytest.raises(Exception, match="exists"):
        await put(store, "k")
    with pytest.raises(Exception, match="CRC"):
        await store.put_if_absent("other", b"x", crc32c=1)
    assert files_in(tmp_path / "deep/store") == [".tmp", "k"]


async def test_a_disk_that_takes_a_few_bytes_at_a_time_gets_all_of_them(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwritev = os.pwritev

    def grudging(descriptor: int, views: Sequence[memoryview], position: int) -> int:
        return pwritev(descriptor, [views[0][:3]], position)

    monkeypatch.setattr(os, "pwritev", grudging)
    parts = Parts([memoryview(b"abcde"), memoryview(b"f"), memoryview(b"ghijklmn")])
    await store.put_if_absent("k", parts, crc32c=crc32c_of(parts))
    assert await store.get("k") == b"abcdefghijklmn"


async def test_a_put_is_on_disk_before_it_has_its_name_and_its_name_is_before_it_is_answered(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given: the real calls, recorded
    root = tmp_path / "deep/store"
    events: list[str] = []
    fsync, link = os.fsync, os.link

    def recording_fsync(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}")).relative_to(root)
        events.append("body" if path.parts[:1] == (".tmp",) else str(path))
        fsync(descriptor)

    def recording_link(source: Path, target: Path) -> None:
        events.append("link")
        link(source, target)

    monkeypatch.setattr(os, "fsync", recording_fsync)
    monkeypatch.setattr(os, "link", recording_link)
    # when: the first object of two new directories, then a second one there
    await put(store, "l0/aa/1")
    first, events[:] = list(events), []
    await put(store, "l0/aa/2")
    # then: the new directories' names are made durable once, the object's every time
    assert first == ["body", "link", "l0/aa", ".", "l0"]
    assert events == ["body", "link", "l0/aa"]


async def test_directories_that_a_delete_empties_are_removed(store: LocalStore, tmp_path: Path) -> None:
    await put(store, "l0/aa/h/1")
    await put(store, "l0/bb/h/1")
    await store.delete_many(["l0/aa/h/1"])
    assert files_in(tmp_path / "deep/store") == [".tmp", "l0", "l0/bb", "l0/bb/h", "l0/bb/h/1"]
    await store.delete_many(["l0/bb/h/1"])
    assert files_in(tmp_path / "deep/store") == [".tmp"]


async def test_a_delete_is_on_disk_before_it_is_answered(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given: three objects, two of them in one directory, and the real calls recorded
    for key in ("l0/aa/1", "l0/aa/2", "l0/bb/1"):
        await put(store, key)
    root = tmp_path / "deep/store"
    events: list[str] = []
    fsync, unlink = os.fsync, os.unlink

    def recording_fsync(descriptor: int) -> None:
        events.append(f"sync {Path(os.readlink(f'/proc/self/fd/{descriptor}')).relative_to(root)}")
        fsync(descriptor)

    def recording_unlink(path: str | Path, *, dir_fd: int | None = None) -> None:
        events.append(f"unlink {Path(path).relative_to(root)}")
        unlink(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "fsync", recording_fsync)
    monkeypatch.setattr(os, "unlink", recording_unlink)
    # when: a directory keeps an object, then one loses its last
    await store.delete_many(["l0/aa/1"])
    first, events[:] = list(events), []
    await store.delete_many(["l0/bb/1"])
    # then: the lowest directory that stays is synced, after the object's name is gone
    assert first == ["unlink l0/aa/1", "sync l0/aa"]
    assert events == ["unlink l0/bb/1", "sync l0"]


async def test_puts_and_deletes_in_one_directory_do_not_disturb_each_other(store: LocalStore) -> None:
    async def put_and_delete(number: int) -> None:
        for turn in range(20):
            key = f"l0/aa/h/{number}-{turn}"
            await put(store, key)
            assert await store.get(key) == b"x"
            assert (await store.delete_many([key])).failed == {}

    await asyncio.gather(*(put_and_delete(number) for number in range(8)))
    assert [stat async for stat in store.list()] == []


async def test_two_stores_on_one_directory_agree_on_the_winner(store: LocalStore, tmp_path: Path) -> None:
    other = LocalStore(tmp_path / "deep/store")
    answers = await asyncio.gather(
        *(put([store, other][n % 2], "k", b"%d" % n) for n in range(16)), return_exceptions=True
    )
    [winner] = [number for number, answer in enumerate(answers) if answer is None]
    assert await other.get("k") == b"%d" % winner
    await other.close()


async def test_leftovers_of_a_crash_are_invisible_and_swept_by_age(store: LocalStore, tmp_path: Path) -> None:
    leftover = tmp_path / "deep/store/.tmp/crashed"
    leftover.write_bytes(b"half")
    os.utime(leftover, (1_000_000, 1_000_000))
    assert [stat async for stat in store.list()] == []
    assert await store.abort_multiparts(older_than_ms=1_000_000_000) == 0
    assert await store.abort_multiparts(older_than_ms=1_000_000_001) == 1
    assert files_in(tmp_path / "deep/store") == [".tmp"]


async def test_a_symbolic_link_out_of_the_directory_is_not_followed_by_listings(
    store: LocalStore, tmp_path: Path
) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/file").write_bytes(b"x")
    (tmp_path / "deep/store/l0").symlink_to(tmp_path / "secret")
    assert "l0/file" not in [stat.key async for stat in store.list()]


async def test_a_key_below_or_above_another_is_refused(store: LocalStore) -> None:
    await put(store, "a/b")
    for key in ("a/b/c", "a/b/c/d", "a"):
        with pytest.raises(BadKeyError):
            await put(store, key)
    for absent in ("a", "a/b/c"):
        with pytest.raises(ObjectNotFoundError):
            await store.head(absent)
        with pytest.raises(ObjectNotFoundError):
            await store.get(absent)


async def test_a_file_in_place_of_the_directory_is_a_misconfiguration(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    store = LocalStore(tmp_path / "file")
    with pytest.raises(StoreMisconfiguredError, match="not a directory"):
        await store.open()
    await store.close()


async def test_a_directory_that_must_exist_is_not_made(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "nope", must_exist=True)
    with pytest.raises(StoreMisconfiguredError, match=r"there is no directory .*nope"):
        await store.open()
    await store.close()
    assert list(tmp_path.iterdir()) == []
    # an existing one is opened, and nothing is put into it
    (tmp_path / "nope").mkdir()
    store = LocalStore(tmp_path / "nope", must_exist=True)
    await store.open()
    assert list((tmp_path / "nope").iterdir()) == []
    await put(store, "k")
    assert await store.get("k") == b"x"
    await store.close()


async def test_a_store_that_was_not_opened_makes_its_directory_at_the_first_put(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "new")
    assert [stat async for stat in store.list()] == []
    assert await store.abort_multiparts(older_than_ms=2**42) == 0
    with pytest.raises(ObjectNotFoundError):
        await store.get("k")
    await put(store, "k")
    assert await store.get("k") == b"x"
    await store.close()


def test_a_full_disk_is_told_as_such_and_leaves_nothing(tmp_path: Path) -> None:
    # A limit on the size of files gives EFBIG in the middle of a body, after part of it was written.
    script = """
        import asyncio, resource, sys
        from pathlib import Path
        from storage.local import LocalStore
        from storage.objects import StoreFullError
        from wire.crc import crc32c

        async def main() -> None:
            root = Path(sys.argv[1])
            store = LocalStore(root)
            await store.open()
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
            small, large = b"x" * 100_000, b"x" * 100_001
            await store.put_if_absent("l0/small", small, crc32c=crc32c(small))
            try:
                await store.put_if_absent("l0/large", large, crc32c=crc32c(large))
            except StoreFullError as error:
                print("full:", error.remedy)
            upload = await store.start_multipart("l1/large")
            await upload.write(small)
            try:
                await upload.write(b"y")
            except StoreFullError:
                print("full again")
            await upload.abort()
            print(sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()))
            await store.close()

        asyncio.run(main())
    """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(tmp_path / "store")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == ["full: free or add disk space", "full again", "['l0/small']"]


def test_a_process_that_is_killed_in_the_middle_of_puts_leaves_whole_objects_only(tmp_path: Path) -> None:
    # given: a process that puts objects for ever, each with its key's number as its body
    script = """
        import asyncio, itertools, sys
        from pathlib import Path
        from storage.local import LocalStore
        from wire.crc import crc32c

        async def main() -> None:
            store = LocalStore(Path(sys.argv[1]))
            await store.open()
            for number in itertools.count():
                body = b"%08d" % number * 50_000
                await store.put_if_absent(f"l0/{number:08}", body, crc32c=crc32c(body))
                print(number, flush=True)

        asyncio.run(main())
    """
    root = tmp_path / "store"
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), str(root)], cwd=ROOT, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    # when
    answered = [int(process.stdout.readline()) for _ in range(10)][-1]
    process.kill()
    answered = max([answered, *(int(line) for line in process.stdout.read().split())])
    process.wait()
    process.stdout.close()
    # then
    bodies = {int(path.name): path.read_bytes() for path in (root / "l0").iterdir()}
    assert set(range(answered + 1)) <= set(bodies)
    assert all(body == b"%08d" % number * 50_000 for number, body in bodies.items())
