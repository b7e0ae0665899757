"""`siltstone transactions abort`: end a transaction that hangs, through its coordinator."""

from __future__ import annotations

import asyncio

import click

from runtime.clock import SystemClock
from runtime.errors import BadInputError
from runtime.text import age_text, plural
from siltstone.cli.groups.asking import confirm, tell
from siltstone.cli.options.agent_options import agent_options
from siltstone.kafka.transactions import Described, abort, look
from siltstone.terminal.plain import say

ONGOING = "Ongoing"


class NotOngoingError(BadInputError):
    pass


class NoPartitionError(BadInputError):
    """WriteTxnMarkers names a transaction by a partition of it."""


@click.command("abort")
@click.argument("name", metavar="ID")
@click.option("--yes", is_flag=True, help="Abort without asking.")
@agent_options
def abort_command(name: str, yes: bool, bootstrap: str) -> None:
    """Abort the ongoing transaction of transactional ID, on all its partitions, and fence its producer.

    Its records stay in the log as aborted: readers of committed records never see them, and go on. Offsets that it
    would have committed for groups are dropped. The producer hears with its next request that it is fenced. For most
    clients that is fatal: close the producer, and start a new one with the same id.

    \b
    Examples:
      siltstone transactions abort payments-1
      siltstone transactions abort payments-1 --yes --data ./siltstone-data
    """

    clock = SystemClock()
    found = asyncio.run(look(bootstrap, name, clock, told=tell))
    _check(found)
    what = plural(sum(map(len, found.topics.values())), "partition")
    age = age_text(clock.wall_ms() - found.started_ms)
    say(f"the transaction of {name!r} has been ongoing for {age} on {what}: {_places(found)}", err=True)
    producer = f"producer {found.producer_id}, epoch {found.producer_epoch}"
    confirm(yes, f"abort it and fence {producer}?")
    asyncio.run(abort(found))
    say(f"aborted the transaction of {name!r} on {what}; {producer}, is fenced")


PLACES_SHOWN_MAX = 20


def _places(found: Described) -> str:
    places = [f"{topic}-{number}" for topic, numbers in found.topics.items() for number in numbers]
    more = len(places) - PLACES_SHOWN_MAX
    return ", ".join(places[:PLACES_SHOWN_MAX]) + (f" and {more:,} more" if more > 0 else "")


def _check(found: Described) -> None:
    """Raises NotOngoingError, NoPartitionError."""
    if found.state != ONGOING:
        raise NotOngoingError(
            f"transactional id {found.transactional_id!r} has no ongoing transaction, it is {found.state};"
            " nothing was done",
            remedy="`siltstone transactions list --state Ongoing` shows those that can be aborted",
        )
    if not found.topics:
        raise NoPartitionError(
            f"the transaction of {found.transactional_id!r} is on no partition that you may see, so it holds no readers"
            " of them back; nothing was done",
            remedy=f"agents abort it when its time-out of {age_text(found.timeout_ms)} is over, or at once when a"
            " producer with the same transactional id starts",
        )
