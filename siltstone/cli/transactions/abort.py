"""`siltstone transactions abort`: end a transaction that hangs, through its coordinator."""

from __future__ import annotations

import asyncio
import sys

import click

from runtime.clock import SystemClock
from runtime.errors import BadInputError
from runtime.text import age_text, plural
from siltstone.cli.groups.asking import confirm, tell
from siltstone.cli.options.agent_options import agent_options
from siltstone.cli.options.data_option import is_typed
from siltstone.kafka.transactions import Described, abort, look
from siltstone.ops.hint_options import option
from siltstone.terminal.plain import say

ONGOING = "Ongoing"
PLACES_SHOWN_MAX = 20


class NotOngoingError(BadInputError):
    pass


@click.command("abort")
@click.argument("name", metavar="ID")
@click.option("--yes", is_flag=True, help="Abort without asking.")
@agent_options
def abort_command(name: str, yes: bool, bootstrap: str) -> None:
    """Abort the ongoing transaction of transactional ID, on all its partitions, and fence its producer.

    Its records stay in the log as aborted: readers of committed records never see them, and go on. Offsets that it
    would have committed for groups are dropped. The producer hears with its next request that it is fenced. For most
    clients that is fatal: close the producer, and start a new one with the same id.

    It takes `Alter` on the cluster. A transaction that is on no partition, but holds back the groups whose offsets it
    commits, ends as if a new producer with ID began. That takes `Write` on the transactional id.

    \b
    Examples:
      siltstone transactions abort payments-1
      siltstone transactions abort payments-1 --yes --data ./siltstone-data
    """

    clock, places = SystemClock(), _places_options()
    found = asyncio.run(look(bootstrap, name, clock, told=tell, places=places))
    if found.state != ONGOING:
        raise NotOngoingError(
            f"transactional id {name!r} has no ongoing transaction, it is {found.state}; nothing was done",
            remedy=f"`siltstone transactions list --state Ongoing{places}` shows those that can be aborted",
        )
    age = age_text(clock.wall_ms() - found.started_ms)
    producer = f"producer {found.producer_id}, epoch {found.producer_epoch}"
    what = f"the transaction of {name!r}"
    if found.topics:
        on = f" on {plural(sum(map(len, found.topics.values())), 'partition')}"
        say(f"{what} has been ongoing for {age}{on}: {_places(found)}", err=True)
        question = f"abort it and fence {producer}?"
    else:
        on = ""
        say(
            f"{what} has been ongoing for {age} and is on no partition. It may hold back groups whose offsets it"
            " commits. Topics that you may not describe are not counted",
            err=True,
        )
        question = f"abort it as a new producer with id {name!r} would, and fence {producer}?"
    _ask(yes, question)
    asyncio.run(abort(found, places=places))
    say(f"aborted {what}{on}; {producer}, is fenced")


def _ask(yes: bool, question: str) -> None:
    try:
        confirm(yes, question)
    except click.Abort:
        # Click would print "Aborted!", which reads as if the transaction was.
        say("nothing was done", err=True)
        sys.exit(1)


def _places_options() -> str:
    """The options by which a hint names commands that read Postgres. Those do not take --bootstrap."""
    if is_typed("bootstrap"):
        return " --metadata URL"
    return option("data", str(click.get_current_context().params["data"])) if is_typed("data") else ""


def _places(found: Described) -> str:
    places = [f"{topic}-{number}" for topic, numbers in found.topics.items() for number in numbers]
    more = len(places) - PLACES_SHOWN_MAX
    return ", ".join(places[:PLACES_SHOWN_MAX]) + (f" and {more:,} more" if more > 0 else "")
