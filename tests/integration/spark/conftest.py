"""The metadata of a lake."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

from metadata.contract.store import MetadataStore
from metadata.urls import open_metadata

if TYPE_CHECKING:
    from tests.fixtures.lake import Lake


@pytest.fixture
async def metadata(lake: Lake) -> AsyncIterator[MetadataStore]:
    service = open_metadata(lake.metadata_url)
    await service.open()
    yield service
    await service.close()
