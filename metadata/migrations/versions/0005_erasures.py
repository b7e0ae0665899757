"""Tables for erasures: keys whose records go from every object.

Expands only. Programs of schema 0001 work on with it: a compactor claims jobs by their kinds, and theirs know none of
the kind `erase`. What they merge meanwhile has no stamp, so it is rewritten once more.
"""

from __future__ import annotations

from metadata.migrations.scripts import run_script

revision = "0005"
down_revision = "0004"
oldest_program = "0001"


def upgrade() -> None:
    run_script("0005_erasures.sql")


def downgrade() -> None:
    raise NotImplementedError("schemas only go forward: restore a backup to go back")
