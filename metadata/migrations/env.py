"""Alembic's entry point. It runs on the connection that `metadata/migrations/migrate.py` hands over, inside its
transaction."""

from __future__ import annotations

from alembic import context

from metadata.postgres.tables import METADATA

context.configure(connection=context.config.attributes["connection"], target_metadata=METADATA)
with context.begin_transaction():
    context.run_migrations()
