"""What agents of one zone ask of it: where each serves the blocks that it holds.

Expands only. Programs of schema 0001 work on with it.
"""

from __future__ import annotations

from metadata.migrations.scripts import run_script

revision = "0003"
down_revision = "0002"
oldest_program = "0001"


def upgrade() -> None:
    run_script("0003_zone.sql")


def downgrade() -> None:
    raise NotImplementedError("schemas only go forward: restore a backup to go back")
