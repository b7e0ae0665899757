"""The first schema and the first functions that commit."""

from __future__ import annotations

from metadata.migrations.scripts import run_script

revision = "0001"
down_revision = None


def upgrade() -> None:
    run_script("0001_tables.sql")
    run_script("commit_l0_v1.sql")
    run_script("commit_offsets_v1.sql")
    run_script("pins_v1.sql")


def downgrade() -> None:
    raise NotImplementedError("schemas only go forward: restore a backup to go back")
