"""`siltstone file inspect` over merged files: properties, block indexes, flagged extents, damage in each."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from siltstone.cli import main
from storage.format.block_index import BlockEntry
from storage.format.inspect import inspect_file
from storage.local import LocalStore
from storage.memory import MemoryStore
from tests.fixtures.record_batches import NOW_MS
from wire.crc import crc32c

GOLDEN = Path(__file__).parents[2] / "golden/file-format-v1-merged.silt"
KEY = "l1/46/2023111422/7-3-018bcfe5-68fa-7abc-8def-0123456789ab.silt"
BLOCK_INDEX, PROPERTIES = 185, 213


async def stored(body: bytes) -> MemoryStore:
    store = MemoryStore()
    await store.put_if_absent(KEY, body, crc32c=crc32c(body))
    return store


def changed(position: int) -> bytes:
    body = bytearray(GOLDEN.read_bytes())
    body[position] ^= 1
    return bytes(body)


@pytest.mark.parametrize("walk_batches", [False, True])
async def test_a_merged_file_shows_its_merge_and_its_blocks_and_a_flagged_extent_is_no_damage(
    walk_batches: bool,
) -> None:
    report = await inspect_file(await stored(GOLDEN.read_bytes()), KEY, walk_batches=walk_batches)
    assert report.is_sound
    assert report.properties is not None
    assert (report.properties.job_id, report.properties.kind) == (42, "merge")
    assert [extent.blocks for extent in report.extents] == [(BlockEntry(100, NOW_MS, 0),), (), ()]
    assert [extent.is_flagged for extent in report.extents] == [False, False, True]
    assert [len(extent.batches) for extent in report.extents] == ([2, 0, 0] if walk_batches else [0, 0, 0])


@pytest.mark.parametrize("walk_batches", [False, True])
async def test_a_damaged_block_index_is_told(walk_batches: bool) -> None:
    report = await inspect_file(await stored(changed(BLOCK_INDEX + 3)), KEY, walk_batches=walk_batches)
    assert not report.is_sound
    assert "block index" in report.extents[0].damage


async def test_damaged_properties_are_told_and_the_extents_shown_all_the_same() -> None:
    report = await inspect_file(await stored(changed(PROPERTIES + 5)), KEY)
    assert (report.is_sound, report.properties, len(report.extents)) == (False, None, 3)
    assert "the properties have CRC-32C" in report.damage


async def test_an_extent_whose_bytes_changed_is_told_though_its_batches_are_not_walked() -> None:
    report = await inspect_file(await stored(changed(20)), KEY)
    assert [extent.crc_matches for extent in report.extents] == [False, None, True]


async def test_the_command_shows_a_merged_file_as_a_table_and_as_json(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    await store.open()
    body = GOLDEN.read_bytes()
    await store.put_if_absent(KEY, body, crc32c=crc32c(body))
    await store.close()
    arguments = ["file", "inspect", KEY, "--object-store", tmp_path.as_uri()]
    # the command starts a loop of its own, which needs a thread without one

    shown = await asyncio.to_thread(CliRunner().invoke, main, arguments)
    assert shown.exit_code == 0, shown.output
    assert "job 42, merge, epoch 1" in shown.output
    assert "orders (0194f1a2-7c3d-4e5f-8a9b-0c1d2e3f4a5b), config version 3" in shown.output
    assert "flagged: partition 7 at 166: its bytes have CRC-32C 00000001" in shown.output
    assert shown.output.endswith("sound\n")
    report = json.loads((await asyncio.to_thread(CliRunner().invoke, main, [*arguments, "--json"])).output)
    assert report["properties"]["inputs"] == [[17, KEY]]
    assert [extent["flagged"] for extent in report["extents"]] == [False, False, True]
    assert report["extents"][0]["block_index"] == [{"base_offset": 100, "max_timestamp_ms": NOW_MS, "position": 0}]
