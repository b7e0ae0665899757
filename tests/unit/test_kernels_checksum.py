"""CRC-32C in kernels, by the instruction and by tables, against the wheel that the rest of the project sums with."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from wire.crc import crc32c
from wire.kernels.checksum import crc32c_at, crc32c_by_tables
from wire.kernels.compiled import address_of

PATHS = {"what this processor has": crc32c_at, "tables": crc32c_by_tables}
BYTES = np.random.default_rng(32).integers(0, 256, 100_000, dtype=np.uint8)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("first", [0, 3])
def test_it_is_the_checksum_of_the_wheel(path: str, first: int) -> None:
    # Around every border: of words, of three short stretches (384), of three long ones (3072).
    sums: Callable[[int, int, int], int] = PATHS[path]
    for count in (*range(40), *range(375, 400), *range(760, 780), *range(3060, 3090), 6144, 6145, 99_990):
        part = BYTES[first : first + count]
        assert sums(address_of(part), count, 0) == crc32c(part.tobytes()), count


@pytest.mark.parametrize("path", PATHS)
def test_it_goes_on_from_a_checksum(path: str) -> None:
    sums = PATHS[path]
    start, rest = BYTES[:777], BYTES[777:5000]
    assert sums(address_of(rest), len(rest), crc32c(start.tobytes())) == crc32c(BYTES[:5000].tobytes())
    assert sums(address_of(rest), 0, 0xFFFFFFFF) == 0xFFFFFFFF
