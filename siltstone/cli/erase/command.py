"""`siltstone erase`: request an erasure, show how far it is, check that its keys are nowhere."""

from __future__ import annotations

import difflib

import click

from siltstone.cli.erase.request import request
from siltstone.cli.erase.status import status
from siltstone.cli.erase.verify import verify
from siltstone.cli.options.usage import WrongUsageError


class RequestByDefault(click.Group):
    """A group in which a word that is no subcommand begins a request."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            near = difflib.get_close_matches(args[0], self.commands, n=1)
            # A request takes one word beside its options.
            if near and len(args) > 1 and not args[1].startswith("-"):
                raise WrongUsageError(f"no such subcommand {args[0]!r}", remedy=f"did you mean {near[0]!r}?")
            args = ["request", *args]
        return super().parse_args(ctx, args)


@click.group(cls=RequestByDefault)
def erase() -> None:
    """Remove the records of keys from every object, by a deadline, and prove it.

    `siltstone erase TOPIC` is short for `siltstone erase request TOPIC`, which a topic named status or verify needs.
    docs/erasure.md tells how it works and which copies it does not reach.

    \b
    Examples:
      siltstone erase users --key alice --wait
      siltstone erase visits --keys-file gone.txt --deadline 7d --yes
      siltstone erase status 1 --report report.json
      siltstone erase verify 1
    """


for each in (request, status, verify):
    erase.add_command(each)
