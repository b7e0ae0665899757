"""Whether the process in this container is alive: `python -m siltstone.health [--ready]`, for its health check.

Asks `/healthz` (`/readyz` with `--ready`) of the address in SILTSTONE_METRICS_LISTEN and leaves with 0 for an answer of
200, else with 1 and a line that says why. Imports next to nothing: it runs every few seconds beside an agent.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from http.client import HTTPConnection, HTTPException

from runtime.settings.addresses import parse_address
from runtime.settings.values import SettingsError

VARIABLE = "SILTSTONE_METRICS_LISTEN"
TIMEOUT_S = 4.0
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - what was listened on, and where that answers


def what_is_wrong(environ: Mapping[str, str], path: str) -> str:
    """Why the process must be taken for dead (or, for `/readyz`, not be sent work); "" when it need not."""
    try:
        host, port = parse_address(environ.get(VARIABLE, ""), name=VARIABLE)
    except SettingsError as error:
        return str(error)
    if not port:
        return f"{VARIABLE} leaves the port to chance: name one"
    connection = HTTPConnection(_ANY.get(host, host), port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        said = answer.read(1_000).decode(errors="replace").strip()
        return "" if answer.status == 200 else f"{path} answers {answer.status}: {said}"
    except (OSError, HTTPException) as error:
        return f"{path} at {host}:{port} does not answer: {error}"
    finally:
        connection.close()


def main(words: Sequence[str], environ: Mapping[str, str]) -> int:
    """The exit code."""
    if words not in ([], ["--ready"]):
        sys.stderr.write("usage: python -m siltstone.health [--ready]\n")
        return 2
    wrong = what_is_wrong(environ, "/readyz" if words else "/healthz")
    if wrong:
        sys.stderr.write(f"{wrong}\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
