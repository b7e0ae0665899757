"""Users, ACLs and quotas in the metadata backup: what a rebuild brings back, and what never reaches the bucket, a
change or a reader."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from compactor.deletion.backup_format import BACKUP_PREFIX, BackupDamagedError, decode_manifest, encode_manifest
from compactor.deletion.metadata_backup import MetadataBackup
from metadata.contract.errors import SchemaMismatchError
from metadata.contract.store import MetadataStore
from metadata.migrations.grants import READER, grant
from metadata.migrations.migrate import schema_state
from metadata.migrations.schema_versions import check_takes
from metadata.postgres.connection import connect
from metadata.security.contract import SecurityState, UserChange
from metadata.urls import open_metadata
from runtime.runtime import Runtime
from security.acls.values import AclFilter
from security.quotas.values import DEFAULT, QuotaEntity
from security.scram import Mechanism, ScramCredential
from siltstone.ops.rebuild.run import Rebuild, Rebuilt
from storage.cluster import check_cluster
from storage.objects import ObjectStore
from storage.urls import open_store
from tests.contract.test_security import ODD_NAMES, acl, credential
from tests.fixtures.canaries import forms, opened_objects
from tests.fixtures.postgres import run_sql

SALT, STORED, SERVER = (name.encode() * 2 for name in ("canary-salt-", "canary-stored-", "canary-server-"))


def backup_of(metadata: MetadataStore, store: ObjectStore) -> MetadataBackup:
    return MetadataBackup(store=store, metadata=metadata, runtime=Runtime(), interval_ms=3_600_000)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[ObjectStore]:
    (tmp_path / "objects").mkdir()
    opened = open_store((tmp_path / "objects").as_uri())
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
async def metadata(postgres_url: str, store: ObjectStore) -> AsyncIterator[MetadataStore]:
    opened = open_metadata(postgres_url)
    await opened.open()
    await check_cluster(store, cluster_id=(await opened.cluster_identity()).cluster_id, store_bound=False)
    yield opened
    await opened.close()


async def rebuilt(store: ObjectStore, url: str) -> Rebuilt:
    return await Rebuild(store=store, metadata_url=url, runtime=Runtime(), say=lambda _: None, force=True).run()


async def state_at(url: str) -> SecurityState:
    opened = open_metadata(url)
    await opened.open()
    try:
        return await opened.security.security()
    finally:
        await opened.close()


async def test_a_rebuild_brings_back_acls_and_quotas_to_the_last_increment_and_no_user(
    metadata: MetadataStore, store: ObjectStore, bare_postgres_url: str
) -> None:
    security, backup = metadata.security, backup_of(metadata, store)
    ann, both = QuotaEntity(user="ann"), QuotaEntity(user=DEFAULT, client_id="\ud800\0")
    await security.create_acls([acl(name, principal=name) for name in ODD_NAMES])
    await security.alter_quotas({ann: {"producer_byte_rate": 0.1, "consumer_byte_rate": 2.0}, both: {"x": 3.0}})
    await security.alter_users([UserChange(name="ann", mechanism=Mechanism(1), credential=credential())])
    await backup.snapshot()
    await security.create_acls([acl(f"later {number}") for number in range(1_200)])
    await security.delete_acls([AclFilter(resource_name="later 7"), AclFilter(resource_name=ODD_NAMES[2])])
    await security.alter_quotas({ann: {"producer_byte_rate": None, "consumer_byte_rate": 1e300}})
    await backup.round()

    assert (await rebuilt(store, bare_postgres_url)).is_complete

    before, after = await security.security(), await state_at(bare_postgres_url)
    assert len(before.acls) == len(ODD_NAMES) + 1_198
    assert (set(after.acls), after.quotas) == (set(before.acls), before.quotas)
    assert (after.users, after.cluster_secret == before.cluster_secret) == ({}, False)
    # what came back is known to its rows: nothing is there twice, and everything can go
    again = open_metadata(bare_postgres_url)
    await again.open()
    await again.security.create_acls(list(before.acls))
    assert len((await again.security.security()).acls) == len(before.acls)
    await again.security.alter_quotas({ann: {"consumer_byte_rate": None}, both: {"x": None}})
    _, (gone,) = await again.security.delete_acls([AclFilter()])
    state = await again.security.security()
    assert (len(gone), state.acls, state.quotas) == (len(before.acls), [], {})
    await again.close()


async def test_a_rebuilt_cluster_with_acls_takes_no_program_that_would_ignore_them(
    metadata: MetadataStore, store: ObjectStore, bare_postgres_url: str
) -> None:
    await metadata.security.create_acls([acl()])
    await backup_of(metadata, store).snapshot()
    await rebuilt(store, bare_postgres_url)
    with pytest.raises(SchemaMismatchError, match="too old"):
        check_takes(await schema_state(bare_postgres_url), "0006")


async def test_a_backup_of_a_release_without_acls_is_read_and_others_must_be_complete(
    metadata: MetadataStore, store: ObjectStore
) -> None:
    cluster_id = (await metadata.cluster_identity()).cluster_id
    id_ = await backup_of(metadata, store).snapshot()
    body = await store.get(f"catalog/snapshots/{id_}/manifest.json")
    manifest = decode_manifest(body, cluster_id=cluster_id)
    assert {"acls", "client_quotas"} <= manifest.tables.keys()

    def without(*names: str) -> bytes:
        tables = {name: entry for name, entry in manifest.tables.items() if name not in names}
        return encode_manifest(type(manifest)(instant=manifest.instant, tables=tables))

    older = decode_manifest(without("acls", "client_quotas"), cluster_id=cluster_id)
    assert older.tables.keys() == manifest.tables.keys() - {"acls", "client_quotas"}
    with pytest.raises(BackupDamagedError, match="lacks the table groups"):
        decode_manifest(without("groups"), cluster_id=cluster_id)


# ---- secrets


async def test_nothing_of_a_password_and_no_secret_reaches_a_change_the_bucket_or_a_reader(
    metadata: MetadataStore, store: ObjectStore, postgres_url: str
) -> None:
    security, backup = metadata.security, backup_of(metadata, store)
    secrets = [SALT, STORED, SERVER, (await security.security()).cluster_secret]

    async def alter(name: str) -> None:
        made = ScramCredential(
            mechanism=Mechanism.SCRAM_SHA_512, salt=SALT, iterations=4096, stored_key=STORED, server_key=SERVER
        )
        assert not any(form in repr(made).encode() for secret in secrets for form in forms(secret))
        await security.alter_users([UserChange(name=name, mechanism=made.mechanism, credential=made)])

    await alter("ann the first")
    await backup.snapshot()
    await alter("bob of the increment")
    await security.create_acls([acl()])
    await backup.round()
    # agents and compactors have the rows; look for the same bytes in everything that leaves them
    connection = await connect(postgres_url)
    kept = await connection.fetch("SELECT u::text AS row FROM scram_users u UNION ALL SELECT s::text FROM secrets s")
    changes = await connection.fetch("SELECT c::text AS row FROM changes c")
    await connection.close()
    assert all(any(form in str(kept).encode() for form in forms(secret)) for secret in secrets), "the search finds them"
    bucket = [each async for each in opened_objects(store, BACKUP_PREFIX)]
    for text in [str(changes).encode(), *bucket]:
        assert not any(form in text for secret in secrets for form in forms(secret)), text
    assert b"bob of the increment" in b"".join(bucket), "names are told"
    assert "ann the first" in str(changes)


async def test_a_readers_role_sees_neither_users_nor_secrets(postgres_url: str, metadata: MetadataStore) -> None:
    await metadata.security.create_acls([acl()])
    role = "reader_of_no_secrets"
    await run_sql(postgres_url, f"CREATE ROLE {role} LOGIN PASSWORD 'x'")
    try:
        await grant(postgres_url, role, READER)
        connection = await connect(postgres_url)
        await connection.execute(f"SET ROLE {role}")
        assert await connection.fetchval("SELECT count(cluster_id) FROM cluster") == 1
        for table in ("scram_users", "secrets", "acls", "client_quotas"):
            columns = await connection.fetch(
                "SELECT column_name FROM information_schema.columns WHERE table_name = $1", table
            )
            assert columns == []  # a role is shown the columns that it may use
            for what in ("count(*)", "*"):
                with pytest.raises(asyncpg.InsufficientPrivilegeError):
                    await connection.fetch(f"SELECT {what} FROM {table}")
        await connection.close()
    finally:
        await run_sql(postgres_url, f"DROP OWNED BY {role}", f"DROP ROLE {role}")
