"""The generated database is one that Siltstone's own statements and invariants take for its own."""

from __future__ import annotations

from bench.loads import large_metadata as large
from metadata.postgres.connection import connect
from metadata.postgres.store import PostgresMetadata
from metadata.rules.packed_index import decode_index
from tests.contract.merges import broken


async def test_every_invariant_holds_and_the_planner_sees_what_was_asked_for(postgres_url: str) -> None:
    line = await connect(postgres_url)
    await large.fill_topics(line, topics=4, partitions=10, compacted=1)
    await large.fill_writers(line, writers=3)
    await large.fill_producers(line, producers=20)
    await large.fill_merged(line, files=20, extents=1_000)
    await large.fill_l0(line, files=6, partitions_each=4)
    await large.settle(line)
    await line.close()
    metadata = PostgresMetadata(postgres_url)
    await metadata.open()

    assert await broken(metadata) == []
    view = await metadata.compactors.compaction_view()
    assert [sum(file.level == level for file in view.files) for level in (0, 1, 2)] == [6, 2, 18]
    assert [len(each.extents) for each in view.partitions] == [100] * 3
    assert sorted(len(topic.partition_ids) for topic in await metadata.agents.list_topics()) == [2, 2, 3, 3]
    assert len(await metadata.agents.producer_states()) == 20
    files = await metadata.operators.files(limit=1_000)
    assert {len(decode_index(file.index)) for file in files if file.level == 0} == {4}
    assert (await metadata.deletion.expire()).extents == 0
    await metadata.close()
