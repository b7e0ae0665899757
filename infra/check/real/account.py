"""An account of AWS that is none: a server on this machine answers the provider, and everything in it ends with it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Final

SERVER: Final = "infra.check.real.moto_process"
IDENTIFIER: Final = re.compile(r"\b(vpc-|subnet-|sg-|key/)[0-9a-f][0-9a-f-]{7,}")
REPOSITORY: Final = Path(__file__).parents[3]


class NoServer(Exception):
    """The server that answers in place of AWS did not start."""


@dataclass(frozen=True, slots=True)
class Account:
    """The address of the server, and the identifiers of what is there from the start, by the way they begin."""

    endpoint: str
    known: dict[str, list[str]]

    def settings(self) -> dict[str, str]:
        """The environment by which the provider asks the server, and nobody else."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "none",
            "AWS_SECRET_ACCESS_KEY": "none",
            "AWS_REGION": "eu-central-1",  # for a root module that does not set one
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_MAX_ATTEMPTS": "3",  # what fails here fails again
            "AWS_CONFIG_FILE": "/dev/null",
            "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        }

    def settle(self, folder: Path) -> None:
        """Writes what is there into all files of values below the folder, in place of what they name of its kind."""
        for path in folder.rglob("*.tfvars"):
            path.write_text(self.renamed(path.read_text(encoding="utf-8")), encoding="utf-8")

    def renamed(self, text: str) -> str:
        names: dict[str, Iterator[str]] = {kind: cycle(ids) for kind, ids in self.known.items()}
        taken: dict[str, str] = {}

        def name(found: re.Match[str]) -> str:
            if found[0] not in taken:
                taken[found[0]] = next(names[found[1]])
            return taken[found[0]]

        return IDENTIFIER.sub(name, text)


@contextmanager
def account() -> Generator[Account]:
    """Starts the server, and ends it with the block. Raises NoServer."""
    command = [sys.executable, "-m", SERVER]
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8") as said,
        subprocess.Popen(  # noqa: S603
            command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True
        ) as process,
    ):
        assert process.stdin is not None and process.stdout is not None
        line = process.stdout.readline()
        if not line:
            said.seek(0)
            raise NoServer(f"{SERVER} did not start: {said.read().strip()[-1000:]}")
        try:
            yield Account(**json.loads(line))
        finally:
            process.stdin.close()
            process.wait()
