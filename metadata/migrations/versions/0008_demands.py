"""A table by which agents share quotas.

And a column that keeps the lease of a process whose address was taken over.

Programs of schema 0001 work on with it. Agents of schema 0007 measure each by itself beside newer ones.
"""

from __future__ import annotations

from metadata.migrations.scripts import run_script

revision = "0008"
down_revision = "0007"
oldest_program = "0001"


def upgrade() -> None:
    run_script("0008_demands.sql")


def downgrade() -> None:
    raise NotImplementedError("schemas only go forward: restore a backup to go back")
