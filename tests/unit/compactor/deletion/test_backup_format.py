"""Increments of the metadata backup, as this release and earlier ones write them."""

from __future__ import annotations

import json

import zstandard

from compactor.deletion.backup_format import Increment, decode_increment, encode_increment
from metadata.contract.files import L0File
from metadata.contract.tail import Cursor


def l0_file(file_id: int, *, inline: bytes = b"", txn_rows: bytes = b"") -> L0File:
    return L0File(
        file_id=file_id,
        key=f"l0/{file_id}",
        writer_id=1,
        epoch=2,
        seq=file_id,
        size_bytes=78,
        created_ms=3,
        index=b"\x01",
        inline=inline,
        txn_rows=txn_rows,
    )


def test_markers_and_the_begin_and_end_of_transactions_are_in_increments() -> None:
    files = [l0_file(1), l0_file(2, txn_rows=b"\x01rows"), l0_file(3, inline=b"\x00marker"), l0_file(4)]
    increment = Increment(taken_ms=1, cluster_id="c", cursor=Cursor(), files=files, changes=(), jobs=())

    body = encode_increment(increment)

    assert decode_increment(body, cluster_id="c") == Increment(
        taken_ms=1, cluster_id="c", cursor=Cursor(), files=files, changes=[], jobs=[]
    )
    # Releases without transactions take eight values a file: they can read on where there are none.
    stored = json.loads(zstandard.ZstdDecompressor().decompress(body))
    assert [len(file) for file in stored["files"]] == [8, 10, 10, 8]
