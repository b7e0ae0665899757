"""`siltstone producers`: the clients that wait for the agents, and what they should set."""

from __future__ import annotations

import http.client
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from runtime.errors import BadInputError, UnavailableError
from runtime.passwords import masked
from runtime.text import size_text
from siltstone.cli.options.client_config import client_config_option
from siltstone.cli.options.data_option import data_option, is_typed
from siltstone.cli.options.system_options import default_data
from siltstone.embedded.run_file import read_run_file
from siltstone.kafka.security.tls import context_of, failed
from siltstone.kafka.security.values import CLIENT_SECURITY
from siltstone.ops.producers import Producer, advice_for, budget_advice, budget_of, producers_of, read_page, round_text
from siltstone.processes.monitoring.http_endpoint import PRODUCERS_PATH
from siltstone.terminal.output import json_option, print_json, print_table
from siltstone.terminal.plain import say

TIMEOUT_S = 10.0
PAGE_BYTES_MAX = 2 << 20
"""An agent tells of 200 clients at most, each in about 1 KiB."""


@click.command()
@click.option(
    "--agent",
    "agents",
    multiple=True,
    metavar="URL",
    help="Where an agent serves its metrics (metrics.listen), for example http://10.0.0.7:9100. Once for each agent.",
)
@client_config_option
@data_option("The agents of the `siltstone dev` that runs on this directory.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, max=3600),
    default=5.0,
    show_default=True,
    help="Watch for this long. 0: everything since the agents started.",
)
@json_option
def producers(agents: tuple[str, ...], data: Path | None, seconds: float, as_json: bool) -> None:
    """Show which producers wait for the agents, for how much of their time, and what to set.

    A producer whose window is full sends nothing until it is answered. It is listed with the bytes that it sends in one
    such round. Small rounds make it slow, however quick the agents are: larger batches carry more in each.

    \b
    Examples:
      siltstone producers --data ./siltstone-data
      siltstone producers --agent http://10.0.0.7:9100 \\
          --agent http://10.0.0.8:9100
      siltstone producers --data ./siltstone-data --seconds 0 --json
      siltstone producers --agent https://10.0.0.7:9100 \\
          --client-config client.properties      # for its ssl.* files
    """
    # --agent on the command line counts before SILTSTONE_DATA.
    urls = agent_urls(data or default_data() if is_typed("data") or not agents else None, agents)
    earlier: Sequence[Mapping[str, Any]] = []
    if seconds:
        earlier = [fetch_page(url) for url in urls]
        time.sleep(seconds)
    pages = [fetch_page(url) for url in urls]
    found = producers_of(pages, earlier)
    budgets = [budget_of(url, page) for url, page in zip(urls, pages, strict=True) if page]
    if as_json:
        print_json(
            {
                "seconds": seconds,
                "producers": [
                    {**asdict(each), "waiting_share": each.waiting_share, "advice": advice_for(each)} for each in found
                ],
                "agents": [asdict(each) for each in budgets],
            }
        )
        return
    _print(found, seconds)
    for line in filter(None, map(budget_advice, budgets)):
        say(line)


def agent_urls(data: Path | None, agents: Sequence[str]) -> Sequence[str]:
    """The agents' HTTP addresses, without a path. Raises BadInputError, UnavailableError, RunFileError."""
    urls = list(agents)
    if data is not None:
        running = read_run_file(data)
        if running is None or not running.metrics_urls:
            raise UnavailableError(
                f"no agent with metrics runs on {data}",
                remedy=f"start one with `siltstone dev --data {data}`, or name agents with --agent URL",
            )
        urls += running.metrics_urls
    if not urls:
        raise BadInputError(
            "no agent was named", remedy="give --data DIR, or --agent http://HOST:PORT of metrics.listen"
        )
    return [_without_path(url) for url in urls]


def _without_path(url: str) -> str:
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise BadInputError(
            f"{url!r} is not the address of an agent", remedy="write http://HOST:PORT of metrics.listen"
        )
    return f"{parts.scheme}://{parts.netloc}"


def fetch_page(url: str) -> Mapping[str, Any]:
    """An agent's `/producers`. Over HTTPS by the files of --client-config. Raises UnavailableError, ClientConfigError,
    TlsFailedError."""
    security = CLIENT_SECURITY.get()
    context = context_of(security) if url.startswith("https:") else None
    try:
        # `_without_path` has checked the scheme.
        with urllib.request.urlopen(url + PRODUCERS_PATH, timeout=TIMEOUT_S, context=context) as answer:  # noqa: S310
            return read_page(_bounded(answer))
    except (OSError, ValueError, http.client.HTTPException) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()  # it holds the connection
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        if isinstance(reason, ssl.SSLError):
            raise failed(masked(url), reason, security) from error
        raise UnavailableError(
            f"{masked(url)} does not tell which producers wait: {reason}",
            remedy="name the metrics.listen of an agent, not its Kafka port and not a compactor",
        ) from error


def _bounded(answer: http.client.HTTPResponse) -> bytes:
    """The whole answer. Raises ValueError for one that no agent gives."""
    data = answer.read(PAGE_BYTES_MAX + 1)
    if len(data) > PAGE_BYTES_MAX:
        raise ValueError(f"its answer is longer than {PAGE_BYTES_MAX >> 20} MiB")
    return data


def _print(found: Sequence[Producer], seconds: float) -> None:
    if not found:
        since = f"in {seconds:g} s" if seconds else "since the agents started"
        say(f"no producer waited for the agents {since}")
        return
    columns = ["client.id", "library", "waits", "a round", "rounds", *(["rate"] if seconds else []), "advice"]
    rows = [
        [
            each.client_id or "-",
            each.software or "unknown",
            f"{each.waiting_share:.0%}",
            round_text(each),
            f"{each.rounds:,}",
            *([f"{size_text(int(each.bytes / seconds))}/s"] if seconds else []),
            advice_for(each) or "-",
        ]
        for each in found
    ]
    print_table(columns, rows, right=("waits", "rounds", "rate"))
