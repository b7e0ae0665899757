"""The metadata store: one handle, with a narrow contract for each kind of caller.

Two implementations, `metadata/postgres/store.py` (durable) and `metadata/memory/store.py` (one process, tests), pass
one contract suite (`tests/contract/`). Code takes the narrow contract that it calls; only composition roots take the
whole store.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from metadata.contract.agents import AgentMetadata
from metadata.contract.backup import BackupMetadata
from metadata.contract.compactors import CompactorMetadata
from metadata.contract.deletion import DeletionMetadata
from metadata.contract.operators import OperatorMetadata
from metadata.contract.readers import ReaderMetadata
from metadata.erasures.contract import ErasureMetadata
from metadata.groups.contract import GroupMetadata
from metadata.security.contract import SecurityMetadata
from metadata.transactions.contract import TransactionMetadata


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterIdentity:
    cluster_id: str
    store_bound: bool
    """True once a process has seen or written `cluster.json` under the object prefix with this id."""


class MetadataStore(Protocol):
    """Every method may raise `MetadataUnavailableError`; its own docstring names its other errors."""

    @property
    def agents(self) -> AgentMetadata: ...

    @property
    def groups(self) -> GroupMetadata: ...

    @property
    def compactors(self) -> CompactorMetadata: ...

    @property
    def deletion(self) -> DeletionMetadata: ...

    @property
    def erasures(self) -> ErasureMetadata: ...

    @property
    def security(self) -> SecurityMetadata: ...

    @property
    def transactions(self) -> TransactionMetadata: ...

    @property
    def readers(self) -> ReaderMetadata: ...

    @property
    def operators(self) -> OperatorMetadata: ...

    @property
    def backup(self) -> BackupMetadata | None:
        """None: the store does not outlive its process, so nothing is backed up."""
        ...

    async def open(self) -> None:
        """Connect and check the schema. Raises SchemaMismatchError; never migrates."""
        ...

    async def close(self) -> None: ...

    async def cluster_identity(self) -> ClusterIdentity: ...

    async def bind_store(self) -> None:
        """Remember that the object prefix carries this cluster's id. Idempotent."""
        ...

    async def now_ms(self) -> int:
        """The time of the store's clock."""
        ...
