"""Transactions: their tables, the commit of files that have some, and their end.

Programs of schema 0001 work on with it, until transactions are used for the first time (`use_transactions_v1`).
"""

from __future__ import annotations

from metadata.migrations.scripts import run_script

revision = "0009"
down_revision = "0008"
oldest_program = "0001"


def upgrade() -> None:
    run_script("0009_transactions.sql")
    run_script("commit_l0_v4.sql")
    run_script("commit_l0_v5.sql")
    run_script("enter_transactions_v1.sql")
    run_script("end_transactions_v1.sql")
    run_script("use_transactions_v1.sql")


def downgrade() -> None:
    raise NotImplementedError("schemas only go forward: restore a backup to go back")
