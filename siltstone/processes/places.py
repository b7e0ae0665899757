"""The place of all objects, from the settings."""

from __future__ import annotations

from runtime.settings.table import Settings
from storage.urls import joined_url


def place_of(settings: Settings) -> str:
    """`object.store.url` with `produce.store.url` in it. Raises StoreMisconfiguredError."""
    return joined_url(settings.object_store_url, settings.produce_store_url, writes=settings.produce_store_writes)
