"""Runs the SQL files beside the revisions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from alembic import op

from metadata.postgres.driver import Connection

FOLDER = Path(__file__).parent / "versions"


def run_script(name: str) -> None:
    """Run all statements of `versions/<name>` inside the migration's transaction.

    The simple query protocol takes many statements at once; SQLAlchemy's prepared statements do not.
    """
    script = (FOLDER / name).read_text(encoding="utf-8")
    connection: Any = op.get_bind().connection.dbapi_connection

    async def execute(driver: Connection) -> None:
        await driver.execute(script)

    connection.run_async(execute)
