"""Tables for users, ACLs and quotas.

Programs of schema 0001 work on with it, for as long as nobody uses these tables: an upgrade replaces them one by one.
But they stop following at a change of a kind that they do not know, and they would let everybody in. So the first use
of the tables is refused while such programs are at work, and from then on none may start
(`metadata/postgres/security/older.py`).
"""

from __future__ import annotations

from metadata.migrations.scripts import run_script

revision = "0007"
down_revision = "0006"
oldest_program = "0001"


def upgrade() -> None:
    run_script("0007_security.sql")
    run_script("excluding_v1.sql")


def downgrade() -> None:
    raise NotImplementedError("schemas only go forward: restore a backup to go back")
