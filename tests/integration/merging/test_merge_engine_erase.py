"""Merges that erase: what goes, what stays byte for byte, the stamps of the outputs, and the merges that fail."""

from __future__ import annotations

import pytest

from compactor.merging import cursors, windows
from compactor.merging.kway_merge import MergeInputError
from compactor.planning.spec import MIB, MergeKind
from metadata.contract.jobs import CommitMerge
from metadata.erasures.contract import ErasedKeys
from tests.fixtures.erasures import erasing, with_keys
from tests.fixtures.merge_inputs import MergeWorld, extents_of, keyed, ranges_of, records_in, stamped
from tests.fixtures.unreadable_batches import UNREADABLE
from wire.batch import BATCH_HEADER_BYTES, iter_headers
from wire.codecs import Codec
from wire.records import build_batch


def values(*pairs: tuple[str, bytes | None], codec: Codec = Codec.NONE) -> bytes:
    return build_batch([keyed(key, value) for key, value in pairs], codec=codec)


async def erased(
    world: MergeWorld, keys: dict[int, ErasedKeys], *, level: int = 2, kind: MergeKind = MergeKind.ERASE
) -> CommitMerge:
    claimed = world.claim(kind=kind, level=level, output_bytes=64 * MIB)
    return await world.engine().run(with_keys(claimed, keys))


def stamps(commit: CommitMerge, partition_id: int) -> list[int]:
    return [each.erased_through for each in extents_of(commit, partition_id)]


@pytest.mark.parametrize("policy", ["delete", "compact"])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
async def test_records_of_erased_keys_go_from_their_partition_and_every_batch_stays(policy: str, codec: Codec) -> None:
    # given two partitions with the same keys in one file, and one more file
    world = MergeWorld()
    for partition_id in (1, 2):
        world.add_partition(partition_id, topic=f"t{partition_id}", cleanup_policy=policy)
    sent = [values(("a", b"1"), ("b", b"1"), codec=codec), values(("a", b"2"), codec=codec)]
    await world.add_leveled({1: sent, 2: sent})
    await world.add_leveled({1: [values(("c", b"1"), ("a", None), codec=codec)]})
    # when two keys are erased from the first
    commit = await erased(world, {1: erasing(5, {"a": 4, "c": 4})})
    # then their records below the marks are gone, the tombstone at a mark stays, and so does everything else
    logs = await world.log_of(commit)
    assert records_in(logs[1]) == [(1, b"b", b"1"), (4, b"a", None)]
    assert logs[2] == world.model_log()[2]
    # and batches keep their offsets, the emptied one as a header alone
    headers = [header for _, header in iter_headers(logs[1])]
    assert [(each.base_offset, each.last_offset) for each in headers] == [(0, 1), (2, 2), (3, 4)]
    assert headers[1].size_bytes == BATCH_HEADER_BYTES
    assert (ranges_of(commit, 1), stamps(commit, 1), stamps(commit, 2)) == ([(0, 4)], [5], [0])
    assert (commit.summary["records_in"], commit.summary["records_out"], commit.summary["records_erased"]) == (8, 5, 3)
    assert [output.level for output in commit.outputs] == [2]
    assert commit.cleaned == ()


async def test_a_second_stage_takes_the_tombstone_at_the_mark_as_well() -> None:
    world = MergeWorld()
    world.add_partition(1, cleanup_policy="compact")
    await world.add_leveled({1: [values(("a", b"1"), ("b", b"1")), values(("a", None), ("a", b"new"))]})
    commit = await erased(world, {1: erasing(9, {"a": 2}, tombstones=True)}, level=1)
    assert records_in((await world.log_of(commit))[1]) == [(1, b"b", b"1"), (3, b"a", b"new")]
    assert [output.level for output in commit.outputs] == [1]


async def test_without_a_record_to_erase_the_bytes_stay_and_the_stamp_is_given() -> None:
    world = MergeWorld()
    world.add_partition(1)
    await world.add_leveled({1: [values(("a", b"1"), ("b", b"1"), codec=Codec.GZIP), values(("c", b"1"))]})
    commit = await erased(world, {1: erasing(4, {"nobody": 3, "c": 2})})
    assert (await world.log_of(commit))[1] == world.model_log()[1]
    assert (stamps(commit, 1), commit.summary["records_erased"]) == ([4], 0)


async def test_no_merge_of_another_kind_erases_or_stamps() -> None:
    world = MergeWorld()
    world.add_partition(1)
    await world.add_leveled({1: [values(("a", b"1"))]})
    commit = await erased(world, {1: erasing(4, {"a": 1})}, kind=MergeKind.MERGE)
    assert ((await world.log_of(commit))[1], stamps(commit, 1)) == (world.model_log()[1], [0])


async def test_a_stamp_never_falls() -> None:
    # given extents that carry the stamp of an erasure that is done, of which one is behind
    world = MergeWorld()
    world.add_partition(1)
    world.add_partition(2)
    for earlier in (7, 3):
        await world.add_leveled({1: [values(("a", b"1"))], 2: [values(("a", b"1"))]})
        world.extents[-2:] = [each._replace(erased_through=earlier) for each in world.extents[-2:]]
    world.extents = [each._replace(erased_through=7) if each.partition_id == 2 else each for each in world.extents]
    # when a merge carries out an older one
    commit = await erased(world, {1: erasing(5, {"a": 2}), 2: erasing(5, {"a": 2})})
    assert (stamps(commit, 1), stamps(commit, 2)) == ([5], [7])


async def test_flagged_extents_stay_as_they_are_and_get_no_stamp() -> None:
    # given three extents, the first flagged before and the second damaged since
    world = MergeWorld()
    world.add_partition(1)
    for _ in range(3):
        await world.add_leveled({1: [values(("a", b"1"), ("b", b"1"))]})
    flagged, damaged, _ = world.extents
    world.extents[0] = flagged._replace(flagged_reason="looked bad", erased_through=2)
    body = bytearray(await world.inner.get(damaged.key))
    body[damaged.position + 70] ^= 1
    await world.replace_object(damaged.key, bytes(body))
    # when the key is erased
    commit = await erased(world, {1: erasing(5, {"a": 6})})
    # then only the sound extent lost its record, and it alone carries the stamp
    found = [(each.flagged_reason is not None, each.erased_through) for each in extents_of(commit, 1)]
    assert found == [(True, 2), (True, 0), (False, 5)]
    assert (commit.summary["records_erased"], commit.summary["flagged_extents"]) == (1, 2)


async def test_damage_that_is_found_late_costs_the_extent_its_stamp_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # given an extent of several windows whose last batch is damaged
    monkeypatch.setattr(cursors, "WINDOW_BYTES", 150)
    monkeypatch.setattr(windows, "WINDOW_BYTES", 150)
    world = MergeWorld()
    world.add_partition(1)
    await world.add_leveled({1: [values(("a", b"x" * 40)) for _ in range(9)]})
    await world.add_leveled({1: [values(("a", b"1"), ("b", b"1"))]})
    damaged = world.extents[0]
    body = bytearray(await world.inner.get(damaged.key))
    body[damaged.position + damaged.length - 3] ^= 1
    await world.replace_object(damaged.key, bytes(body))
    # when the key is erased
    commit = await erased(world, {1: erasing(5, {"a": 11})})
    # then the extent is there as it was, without a stamp
    first, second = extents_of(commit, 1)
    assert (first.flagged_reason is not None, first.length, first.erased_through) == (True, damaged.length, 0)
    assert (second.flagged_reason, second.record_count, second.erased_through) == (None, 1, 5)


@pytest.mark.parametrize("name", UNREADABLE)
async def test_a_batch_that_cannot_be_read_fails_the_merge_and_names_its_file(name: str) -> None:
    # given an unreadable batch below a mark, in a file of its own
    world = MergeWorld()
    world.add_partition(1, topic="orders", partition=3)
    await world.add_leveled({1: [values(("a", b"1"), ("b", b"1"))]})
    await world.add_leveled({1: [UNREADABLE[name]()]})
    bad = world.extents[-1]
    # when the partition is erased
    with pytest.raises(MergeInputError, match=r"orders-3 at offset 2 whose records cannot be read") as failed:
        await erased(world, {1: erasing(5, {"nobody": world.partitions[1].next_offset})})
    # then the merge names the file, which rests, and nothing of it may be committed
    assert failed.value.file_ids == (bad.file_id,)
    assert bad.key in failed.value.message
    # but a batch at or above every mark is no concern of the erasure
    commit = await erased(world, {1: erasing(5, {"a": 2})})
    log = (await world.log_of(commit))[1]
    assert log.endswith(stamped(UNREADABLE[name](), 2))
    assert stamps(commit, 1) == [5]
