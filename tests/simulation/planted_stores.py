"""Bugs planted in the second store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from storage.by_level import ByLevel
from storage.objects import Deleted


@contextmanager
def looks_for_l0_in_one_store() -> Iterator[None]:
    """Records are read from the store that new files go to, and nowhere else."""

    async def get_range(self: Any, key: str, start: int, length: int) -> bytes:
        return await self._to_write(key).get_range(key, start, length)

    with patch.object(ByLevel, "get_range", get_range):
        yield


@contextmanager
def deletes_l0_from_the_first_store_only() -> Iterator[None]:
    """A file that lies in the second store is reported deleted and stays."""

    async def delete_many(self: Any, keys: Sequence[str]) -> Deleted:
        return await self.first.delete_many(keys)

    with patch.object(ByLevel, "delete_many", delete_many):
        yield
