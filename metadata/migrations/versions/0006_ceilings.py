"""A cheaper commit of L0 files, and sums that the periodic work reads instead of every row.

Programs of schema 0001 work on with it.
"""

from __future__ import annotations

from metadata.migrations.scripts import run_script

revision = "0006"
down_revision = "0005"
oldest_program = "0001"


def upgrade() -> None:
    # First: while it sums the extents, commits of files go on. The next part makes them wait, from then to the end.
    run_script("0006_sums.sql")
    run_script("0006_log.sql")
    run_script("commit_l0_v1_packed.sql")
    run_script("commit_l0_v3.sql")


def downgrade() -> None:
    raise NotImplementedError("schemas only go forward: restore a backup to go back")
