"""The sizes that compressed payloads say of themselves: the kernel and Python give the same, and gzip, Snappy and
one-shot zstd say the true one.
"""

from __future__ import annotations

import random

import lz4.frame
import numpy as np
import pytest
import zstandard

from wire.codecs import Codec, compress
from wire.kernels.compiled import address_of
from wire.kernels.frames import said_bytes, said_bytes_python

PLAIN = [b"x", b"record " * 3, random.Random(3).randbytes(70_000), b"k" * 300_000]


def said(payload: bytes, codec: Codec) -> int:
    data = np.frombuffer(payload, dtype=np.uint8).copy()
    by_kernel = said_bytes(address_of(data), len(payload), int(codec))
    assert by_kernel == said_bytes_python(memoryview(payload), int(codec))
    return by_kernel


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY])
def test_gzip_and_snappy_say_their_size(codec: Codec) -> None:
    for plain in PLAIN:
        assert said(compress(codec, plain), codec) == len(plain)


def test_a_zstd_frame_says_its_size_if_its_compressor_knew_it() -> None:
    for plain in PLAIN:
        assert said(zstandard.ZstdCompressor().compress(plain), Codec.ZSTD) == len(plain)
        stream = zstandard.ZstdCompressor().compressobj()
        assert said(stream.compress(plain) + stream.flush(), Codec.ZSTD) == 0


def test_an_lz4_frame_says_its_size_if_it_has_the_field() -> None:
    for plain in PLAIN:
        assert said(lz4.frame.compress(plain, store_size=True), Codec.LZ4) == len(plain)
        assert said(lz4.frame.compress(plain, store_size=False), Codec.LZ4) == 0


def test_damaged_payloads_say_the_same_to_both_and_no_impossible_size() -> None:
    chance = random.Random(7)
    for codec in (Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD):
        for plain in PLAIN[:3]:
            whole = compress(codec, plain)
            for _ in range(60):
                damaged = bytearray(whole[: chance.randint(1, len(whole))])
                damaged[chance.randrange(min(len(damaged), 24))] = chance.randrange(256)
                assert 0 <= said(bytes(damaged), codec) <= 2**31
