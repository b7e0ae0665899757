"""Files of markers, which no object holds: the janitor deletes their rows, and asks the object store nothing."""

from __future__ import annotations

from metadata.contract.files import FileState
from tests.contract.transactions import Coordinator
from tests.integration.compactor.test_janitor import World, metadata_url, world

__all__ = ["metadata_url", "world"]  # fixtures


async def test_dead_files_of_markers_go_without_a_request(world: World) -> None:
    coordinator = await Coordinator.register(world.metadata, 7)
    producer = await coordinator.producer()
    await producer.write(world.partition_id)
    merged = await coordinator.end_all(coordinator.end_of(producer))
    unborn = await coordinator.end_all(coordinator.end_of(producer))  # a repeat: no partition gets a marker
    await producer.end()  # so that neither is the newest of its writer
    files = {file.file_id: file for file in await world.metadata.operators.files(limit=100)}
    (data,) = (file for file in files.values() if not file.inline and file.state is FileState.LIVE)
    await world.merge([data.file_id, merged.file_id])

    swept = await world.janitor().sweep()

    assert (swept.deleted_files, swept.failed) == (1, 0)
    assert world.store.asked == [1]
    after = {file.file_id: file for file in await world.metadata.operators.files(limit=100)}
    assert [(after[id_].state, after[id_].inline) for id_ in (merged.file_id, unborn.file_id)] == [
        (FileState.DELETED, b"")
    ] * 2
    assert world.metric("deleted_bytes_total") == data.size_bytes
