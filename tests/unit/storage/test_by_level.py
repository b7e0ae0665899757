"""Which of two stores a key goes to, and that nothing is lost when the second store comes or goes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from storage.by_level import ByLevel, by_level
from storage.memory import MemoryStore
from storage.objects import Deleted, ObjectNotFoundError, ObjectStat, ObjectStore, StoreMisconfiguredError
from storage.s3.errors import translate
from storage.urls import joined_url, object_url, open_store, parse_store_url, split_object_url
from storage.wrappers.wrapper import WrappedStore
from wire.crc import crc32c

L0, L1 = "l0/aa/one.silt", "l1/aa/two.silt"


async def put(store: ObjectStore, key: str, body: bytes = b"body") -> None:
    await store.put_if_absent(key, body, crc32c=crc32c(body))


async def keys_of(store: ObjectStore, prefix: str = "", *, start_after: str = "") -> list[str]:
    return [stat.key async for stat in store.list(prefix, start_after=start_after)]


async def test_l0_files_go_to_the_second_store_and_all_others_to_the_first() -> None:
    first, second = MemoryStore(), MemoryStore()
    both = ByLevel(first, second)
    for key in (L0, L1, "l2/aa/three.silt", "jobs/1/plan", "catalog/x", "cluster.json"):
        await put(both, key)
        assert await both.get(key) == b"body"
    assert await keys_of(second) == [L0]
    assert await keys_of(first) == ["catalog/x", "cluster.json", "jobs/1/plan", L1, "l2/aa/three.silt"]


async def test_parts_of_an_l0_file_go_to_the_second_store_too() -> None:
    first, second = MemoryStore(), MemoryStore()
    both = ByLevel(first, second)
    for key in (L0, L1):
        upload = await both.start_multipart(key)
        await upload.write(b"body")
        await upload.complete()
    assert (await keys_of(first), await keys_of(second)) == ([L1], [L0])
    for store in (first, second):
        await store.start_multipart("l0/aa/left.silt")
    assert await both.abort_multiparts(older_than_ms=1 << 60) == 2


@pytest.mark.parametrize("place", ["first", "second"])
async def test_an_l0_file_is_found_read_and_deleted_wherever_it_was_written(place: str) -> None:
    first, second = MemoryStore(), MemoryStore()
    await put(first if place == "first" else second, L0)
    for writes in (True, False):
        both = ByLevel(first, second, writes=writes)
        assert await both.get(L0) == b"body"
        assert await both.get_range(L0, 1, 2) == b"od"
        assert (await both.head(L0)).size_bytes == 4
        assert await keys_of(both, "l0/") == [L0]
    both = ByLevel(first, second)
    assert (await both.delete_many([L1, L0])).keys == (L1, L0)
    assert await keys_of(first) == await keys_of(second) == []
    for asked in (both.get(L0), both.get_range(L0, 0, 1), both.head(L0)):
        with pytest.raises(ObjectNotFoundError):
            await asked


async def test_without_writes_new_files_go_to_the_first_store() -> None:
    first, second = MemoryStore(), MemoryStore()
    await put(ByLevel(first, second, writes=False), L0)
    assert (await keys_of(first), await keys_of(second)) == ([L0], [])


async def test_a_listing_merges_both_in_key_order_and_shows_each_key_once() -> None:
    first, second = MemoryStore(), MemoryStore()
    keys = [f"l0/{number:02}/x" for number in range(20)]
    for number, key in enumerate(keys):
        for store, divisor in ((first, 2), (second, 3)):
            if number % divisor == 0 or (number % 2 and store is second):
                await put(store, key)
    for key in ("cluster.json", L1):
        await put(first, key)
        await put(second, key)
    both = ByLevel(first, second)
    assert await keys_of(both) == ["cluster.json", *keys, L1]
    assert await keys_of(both, "l0/") == await keys_of(both, "l0") == keys
    assert await keys_of(both, "l0/1") == keys[10:]
    assert await keys_of(both, "", start_after=keys[15]) == [*keys[16:], L1]
    assert await keys_of(both, "l1/") == [L1]
    assert await keys_of(ByLevel(MemoryStore(), second), "") == [
        key for key in await keys_of(second) if key[:2] == "l0"
    ]


class Ordered(WrappedStore):
    """Refuses the prefixes of other levels."""

    async def list(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[ObjectStat]:
        assert prefix.startswith("l0/")
        async for stat in super().list(prefix, start_after=start_after):
            yield stat


async def test_the_second_store_is_asked_for_l0_alone_and_is_found_below_wrappers() -> None:
    both = ByLevel(MemoryStore(), Ordered(MemoryStore()))
    for prefix in ("", "l", "l0", "l0/", "l0/aa", "l1/", "jobs/"):
        assert await keys_of(both, prefix) == []
    assert by_level(WrappedStore(WrappedStore(both))) is both
    assert by_level(WrappedStore(MemoryStore())) is None


class Refusing(MemoryStore):
    async def delete_many(self, keys: Sequence[str]) -> Deleted:
        return Deleted(keys=(), failed=dict.fromkeys(keys, "no"))


async def test_a_key_that_one_of_the_stores_does_not_delete_has_failed() -> None:
    for both in (ByLevel(MemoryStore(), Refusing()), ByLevel(Refusing(), MemoryStore())):
        deleted = await both.delete_many([L0])
        assert (deleted.keys, deleted.failed) == ((), {L0: "no"})


def test_both_settings_become_one_url_that_names_both_stores(tmp_path: Path) -> None:
    quick = "s3://quick--use1-az4--x-s3/p?region=us-east-1"
    for url in ("s3://logs/p?endpoint=http://h:1&region=us-east-1&client=obstore", tmp_path.as_uri(), "s3://logs"):
        for writes in (True, False):
            joined = joined_url(url, quick, writes=writes)
            place = parse_store_url(joined)
            assert str(place) == joined and place.l0 == parse_store_url(quick) and place.l0_writes is writes
            assert joined_url(joined, "s3://other", writes=True) == joined
            key = f"jobs/1/{'a' * 32}/plan.json.zst"
            carried, found = split_object_url(object_url(place, key))
            assert (found, carried.l0, carried.l0_writes) == (key, place.l0, writes)
    assert joined_url("s3://logs", "", writes=True) == "s3://logs"
    opened = open_store(joined_url((tmp_path / "a").as_uri(), (tmp_path / "b").as_uri(), writes=True))
    assert isinstance(opened, ByLevel)


@pytest.mark.parametrize(
    ("url", "second", "said"),
    [
        ("s3://logs/p", "s3://logs/p?client=obstore", "is the same place as object.store.url"),
        ("s3://logs/p", "s3://logs/p?region=us-east-1", "is the same place as object.store.url"),
        ("file:///a", "file:///a", "is the same place as object.store.url"),
        ("memory://", "s3://quick", "takes no memory://"),
        ("s3://logs", "memory://", "takes no memory://"),
        ("s3://logs", "ftp://x", "produce.store.url has the scheme"),
        ("s3://logs", "s3://user:secret@quick", "produce.store.url carries credentials"),
        ("s3://logs", "s3://quick?l0=s3%3A//third", "a third store"),
    ],
)
def test_a_second_store_that_cannot_be_one_is_refused_by_name(url: str, second: str, said: str) -> None:
    with pytest.raises(StoreMisconfiguredError, match=r"produce\.store\.url") as refused:
        joined_url(url, second, writes=True)
    assert said in refused.value.message and "secret" not in str(refused.value)


async def test_a_store_that_cannot_be_used_is_named_by_its_setting(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    taken, fine = (tmp_path / "taken").as_uri(), (tmp_path / "fine").as_uri()
    for first, second, setting in ((fine, taken, "produce"), (taken, fine, "object")):
        url = joined_url(first, second, writes=True)
        store = open_store(url)
        assert isinstance(store, ByLevel)
        with pytest.raises(StoreMisconfiguredError) as refused:
            await store.open()
        assert refused.value.remedy == f"point {setting}.store.url at one"
        await store.close()


def test_the_remedies_of_s3_name_the_setting_of_the_store() -> None:
    missing = ClientError({"Error": {"Code": "NoSuchBucket"}, "ResponseMetadata": {"HTTPStatusCode": 404}}, "PutObject")
    for setting in ("object.store.url", "produce.store.url"):
        error = translate(missing, place="bucket 'b'", doing="write", setting=setting)
        assert error.remedy == f"create the bucket or correct {setting}"
