"""What running it asks for: which programs may go on after a migration, and which are at work.

Expands only. Programs of schema 0001 work on with it.
"""

from __future__ import annotations

from metadata.migrations.scripts import run_script

revision = "0002"
down_revision = "0001"
oldest_program = "0001"


def upgrade() -> None:
    run_script("0002_operation.sql")


def downgrade() -> None:
    raise NotImplementedError("schemas only go forward: restore a backup to go back")
