"""`python -m siltstone.health [--ready | --started]`: the health check of a container with an agent or a compactor.

It requests `/healthz` (with `--ready`: `/readyz`, with `--started`: `/startupz`) from the address in
SILTSTONE_METRICS_LISTEN, by HTTPS if SILTSTONE_METRICS_TLS_CERT_FILE is set. The exit code is 0 for an answer of 200,
otherwise 1, with a line that says why. The module imports next to nothing, because it runs every few seconds beside an
agent.
"""

from __future__ import annotations

import os
import ssl
import sys
from collections.abc import Mapping, Sequence
from http.client import HTTPConnection, HTTPException, HTTPSConnection

from runtime.settings.addresses import parse_address
from runtime.settings.values import SettingsError

VARIABLE = "SILTSTONE_METRICS_LISTEN"
TLS_VARIABLE = "SILTSTONE_METRICS_TLS_CERT_FILE"
TIMEOUT_S = 4.0
PAGES: Mapping[tuple[str, ...], str] = {(): "/healthz", ("--ready",): "/readyz", ("--started",): "/startupz"}
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - an address to listen on, and one where it answers


def what_is_wrong(environ: Mapping[str, str], path: str) -> str:
    """The reason to treat the process as dead (for `/readyz`: as not ready for work); "" if there is none."""
    try:
        host, port = parse_address(environ.get(VARIABLE, ""), name=VARIABLE)
    except SettingsError as error:
        return str(error)
    if not port:
        return f"{VARIABLE} has port 0, so the port is unknown: give a fixed port"
    connection: HTTPConnection
    if environ.get(TLS_VARIABLE):
        connection = HTTPSConnection(_ANY.get(host, host), port, timeout=TIMEOUT_S, context=_unverified())
    else:
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


def _unverified() -> ssl.SSLContext:
    """We ask our own container, by an address that no certificate names, and send nothing that is secret."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def main(words: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run the check. Returns the exit code."""
    path = PAGES.get(tuple(words), "")
    if not path:
        sys.stderr.write("usage: python -m siltstone.health [--ready | --started]\n")
        return 2
    wrong = what_is_wrong(environ, path)
    if wrong:
        sys.stderr.write(f"{wrong}\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
