"""Make a metadata store from `metadata.url`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from metadata.contract.store import MetadataStore
from runtime.errors import BadInputError
from runtime.passwords import scheme_in

if TYPE_CHECKING:
    from runtime.runtime import Runtime

PRODUCER_ID_EXPIRATION_MS = 86_400_000
"""Kafka's default for producer.id.expiration.ms: one day."""


class MetadataUrlError(BadInputError):
    """`metadata.url` is neither a Postgres URL nor `memory://`."""


def open_metadata(
    url: str,
    *,
    producer_id_expiration_ms: int = PRODUCER_ID_EXPIRATION_MS,
    runtime: Runtime | None = None,
) -> MetadataStore:
    """The store at `postgresql://user@host:port/db`, or a new, empty one in this process for `memory://`.

    Call `open` before use and `close` after. Raises MetadataUrlError.
    """
    scheme = scheme_in(url).partition("+")[0]
    if url == "memory://":
        from metadata.memory.store import MemoryMetadata  # Postgres needs none of it

        return MemoryMetadata(runtime=runtime, producer_id_expiration_ms=producer_id_expiration_ms)
    if scheme in {"postgresql", "postgres"}:
        from metadata.postgres.store import PostgresMetadata  # memory:// needs no SQLAlchemy

        return PostgresMetadata(url, runtime=runtime, producer_id_expiration_ms=producer_id_expiration_ms)
    known = scheme_in(url)
    wrong = f"has the unknown scheme {known!r}" if known else "has no scheme"
    raise MetadataUrlError(f"metadata.url {wrong}", remedy="write postgresql://user@host:port/db, or memory://")
