"""The trace of one record: a removed record is read from any file that still holds it."""

from __future__ import annotations

from metadata.contract.files import FileState
from siltstone.ops.hint_options import NO_HINT_OPTIONS
from siltstone.ops.record_report import Verdict
from siltstone.ops.record_trace import diagnose
from tests.fixtures.heavy_merges import HeavySystem


async def test_a_removed_record_is_read_from_a_dead_l1_file_when_its_l0_file_is_gone() -> None:
    # given keyed records in L1, with the L0 files deleted, then deduped into L2
    system = HeavySystem()
    await system.begin()
    topic = await system.topic("users", cleanup_policy="compact")
    for number in range(2):
        await system.write(topic, [[(b"k%d" % at, b"%d:%d" % (number, at)) for at in range(3)]])
    await system.janitor().sweep()
    assert not await system.keys("l0/")
    await system.merge_all(topic, deduped=topic.partition_ids)
    lease = await system.metadata.compactors.register_compactor("cleaner")
    claimed = await system.claim(lease)
    await system.metadata.compactors.commit_merge(await system.embedded(lease).run(claimed))

    # when
    found = await diagnose(system.metadata, system.store, "users", 0, 1, NO_HINT_OPTIONS)

    # then the record comes from the L1 file, which is dead but not deleted yet
    assert found.verdict is Verdict.COMPACTED
    assert (1, FileState.DEAD.value) in [(step.level, step.state) for step in found.steps]
    assert found.former is not None and (found.former.key, found.former.value) == (b"k1", b"0:1")
    assert found.superseded_by == 4
