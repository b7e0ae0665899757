"""Writes the passwords of this deployment into `.env` beside it, where Compose finds them: `python make_passwords.py`.

The file is readable by its owner alone. It is never written over: the volumes keep the passwords that they were made
with.
"""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path

PLACE = Path(__file__).with_name(".env")
NAMES = ("POSTGRES_PASSWORD", "AGENT_PASSWORD", "COMPACTOR_PASSWORD", "S3_SECRET_KEY", "GRAFANA_PASSWORD")
BYTES = 24


def write(place: Path) -> None:
    """Raises FileExistsError."""
    with os.fdopen(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        for name in NAMES:
            file.write(f"{name}={secrets.token_urlsafe(BYTES)}\n")


if __name__ == "__main__":
    try:
        write(PLACE)
    except FileExistsError:
        sys.exit(f"{PLACE} is there already; nothing was changed")
    print(f"wrote {PLACE}")  # noqa: T201
