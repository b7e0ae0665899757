"""CRC-32C in kernels, by the instruction and by tables, compared with the wheel that the rest of the project uses."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from wire.crc import crc32c, joined_crc32c
from wire.kernels.checksum import POWER_TABLES, crc32c_at, crc32c_by_tables, joined_crc32c_of
from wire.kernels.compiled import address_of

PATHS = {"what this processor has": crc32c_at, "tables": crc32c_by_tables}
BYTES = np.random.default_rng(32).integers(0, 256, 100_000, dtype=np.uint8)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("first", [0, 3])
def test_it_is_the_checksum_of_the_wheel(path: str, first: int) -> None:
    # Around every border: of words, of three short stretches (384), middle ones (1536), long ones (12288).
    sums: Callable[[int, int, int], int] = PATHS[path]
    for count in (
        *range(40),
        *range(375, 400),
        *range(760, 780),
        *range(1525, 1550),
        3072,
        *range(12_280, 12_300),
        24_577,
        99_990,
    ):
        part = BYTES[first : first + count]
        assert sums(address_of(part), count, 0) == crc32c(part.tobytes()), count


@pytest.mark.parametrize("path", PATHS)
def test_it_goes_on_from_a_checksum(path: str) -> None:
    sums = PATHS[path]
    start, rest = BYTES[:777], BYTES[777:5000]
    assert sums(address_of(rest), len(rest), crc32c(start.tobytes())) == crc32c(BYTES[:5000].tobytes())
    assert sums(address_of(rest), 0, 0xFFFFFFFF) == 0xFFFFFFFF


def test_two_sums_are_joined_as_outside_of_kernels() -> None:
    first, second = crc32c(b"first"), crc32c(b"second")
    for second_bytes in (0, 1, 2, 3, 6, 255, 12_345, 2**30 + 7, 2**31 - 1):
        assert joined_crc32c_of(POWER_TABLES, first, second, second_bytes) == joined_crc32c(
            first, second, second_bytes
        ), second_bytes
