"""Columns for compaction by its promises and topics as they were asked for.

Expands only. Programs of schema 0001 work on with it.
"""

from __future__ import annotations

from metadata.migrations.scripts import run_script

revision = "0004"
down_revision = "0003"
oldest_program = "0001"


def upgrade() -> None:
    run_script("0004_promises.sql")


def downgrade() -> None:
    raise NotImplementedError("schemas only go forward: restore a backup to go back")
