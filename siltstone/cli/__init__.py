"""The `siltstone` command.

A command is imported when it runs: `siltstone --help` imports none of them, and the process of an agent imports
nothing that only the CLI needs. Errors that the code raises on purpose are printed as two lines, `error:` and
`remedy:`, and end with exit code 1. Wrong usage ends with 2, and Ctrl-C with 130. Only SILTSTONE_TRACEBACK=1 shows a
traceback.
"""

from __future__ import annotations

import errno
import gc
import importlib
import os
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

import click

from runtime.errors import SiltstoneError
from siltstone.processes.garbage import SELDOM
from siltstone.terminal.plain import escape_error, say

COMMANDS: Mapping[str, tuple[str, str]] = {
    # name: (module:attribute, one line of help)
    "dev": ("siltstone.cli.dev:dev", "Run a whole stack on this machine: Postgres, object store, agents, a compactor."),
    "demo": ("siltstone.cli.demo:demo", "Send 336,776 flights through an agent and compare what comes back."),
    "topics": (
        "siltstone.cli.topics.commands:topics",
        "Create, list, describe, explain, alter, trim and delete topics.",
    ),
    "produce": ("siltstone.cli.records.produce:produce", "Write records to a topic, from stdin or a file."),
    "consume": ("siltstone.cli.records.consume:consume", "Print the records of topics, from any offset or time."),
    "get": ("siltstone.cli.records.get:get", "Print the newest value of a key."),
    "sql": ("siltstone.cli.sql.command:sql", "Ask topics in SQL, without an agent."),
    "groups": (
        "siltstone.cli.groups.commands:groups",
        "List consumer groups, show their lag, reset their offsets, delete them.",
    ),
    "transactions": (
        "siltstone.cli.transactions.commands:transactions",
        "List transactions, show what they hold back, find those that hang, abort one.",
    ),
    "users": ("siltstone.cli.access.users:users", "Create, list and delete users that log in with a password."),
    "acls": ("siltstone.cli.access.acls:acls", "Say who may do what: list, create and delete ACLs."),
    "quotas": ("siltstone.cli.access.quotas:quotas", "Bound how much users and clients may do."),
    "cluster": ("siltstone.cli.cluster.commands:cluster", "Show the agents, show and set cluster-wide configs."),
    "producers": ("siltstone.cli.producers:producers", "Show which producers wait for the agents, and what to set."),
    "probe": ("siltstone.cli.probe:probe", "Write to the agents and read back, now and then, as a client does."),
    "tables": ("siltstone.cli.tables.commands:tables", "Export topics to Parquet files and Iceberg tables."),
    "erase": ("siltstone.cli.erase.command:erase", "Remove the records of keys from every object, by a deadline."),
    "record": ("siltstone.cli.record:record", "Show where one record is stored, or why it is not there."),
    "compact": ("siltstone.cli.compaction.compact:compact", "Show which compaction of a topic is due, or run it now."),
    "compaction": ("siltstone.cli.compaction.watch:compaction", "Watch the compaction of one partition, live."),
    "levels": ("siltstone.cli.compaction.levels:levels", "Draw the levels L0, L1 and L2, run by run."),
    "files": ("siltstone.cli.files.list_files:files", "Show the files that hold the records."),
    "file": ("siltstone.cli.files.inspect_file:file", "Inspect one file and check its CRCs."),
    "fsck": ("siltstone.cli.fsck:fsck", "Check the invariants of a live system."),
    "doctor": ("siltstone.cli.doctor:doctor", "Check that store, Postgres and clock are fit for use."),
    "rebuild": ("siltstone.cli.rebuild:rebuild", "Restore the metadata from the bucket into an empty Postgres."),
    "drill": ("siltstone.cli.drill:drill", "Prove that the metadata could be rebuilt from the bucket."),
    "migrate": ("siltstone.cli.migrate:migrate", "Create or upgrade the metadata schema in Postgres."),
    "upgrade": ("siltstone.cli.upgrade:upgrade", "Show what is left to do of an upgrade."),
    "cost": ("siltstone.cli.cost:cost", "Estimate the monthly cost of a load, beside a Kafka for it."),
    "jobs": ("siltstone.cli.compaction.jobs:jobs", "List merges, show one, or run one here."),
    "agent": ("siltstone.cli.agent:agent", "Run one agent against a given Postgres and object store."),
    "compactor": (
        "siltstone.cli.compactor.command:compactor",
        "Run one compactor against a given Postgres and object store.",
    ),
    "spark": ("siltstone.cli.spark:spark", "Prepare Spark for large merges: check it, pack Siltstone for a cluster."),
}

TRACEBACK_VARIABLE = "SILTSTONE_TRACEBACK"
FILE_REMEDIES: Mapping[int, str] = {
    errno.ENOENT: "correct the path; the folder of a new file must be there",
    errno.ENOTDIR: "correct the path: a part of it is no folder",
    errno.EISDIR: "name a file; this is a folder",
    errno.EACCES: "give this user the right, or name another file",
    errno.EROFS: "name a file on a disk that can be written",
    errno.ENOSPC: "free space on that disk, and run the command again",
}


class LazyGroup(click.Group):
    """A group that imports a command when the command is looked up."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, attribute = COMMANDS[cmd_name][0].split(":")
        command = getattr(importlib.import_module(module), attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{module}:{attribute} is not a click command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            ctx.fail(f"No such command {args[0]!r}. {_did_you_mean(args[0])}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_line) for name, (_, help_line) in COMMANDS.items()])

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        try:
            return super().make_context(info_name, args, parent, **extra)
        except click.ClickException as error:
            escape_error(error)
            raise

    def invoke(self, ctx: click.Context) -> Any:
        gc.set_threshold(*SELDOM)  # before the imports of the command, which take most of its time
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            fail_usage(error)
        except click.ClickException as error:
            escape_error(error)
            raise
        except (click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise  # click handles these, also when the reader of our output has gone (`| head`)
        except KeyboardInterrupt:
            from siltstone.processes.stopping import INTERRUPTED

            # Not click's 1: for `fsck` and `erase verify` that is a finding.
            say("stopped before the end", err=True)
            sys.exit(INTERRUPTED)
        except Exception as error:
            if os.environ.get(TRACEBACK_VARIABLE, "") not in ("", "0"):
                raise
            fail(error)


def fail(error: Exception) -> NoReturn:
    """Print an error and its remedy to stderr; exit with code 1."""
    if isinstance(error, SiltstoneError):
        from siltstone.cli.postgres_remedies import remedy_of

        message, remedy = error.message, error.remedy or remedy_of(error)
    elif isinstance(error, OSError):
        message, remedy = _file_error_text(error), FILE_REMEDIES.get(error.errno or 0, "")
    else:
        message = f"{type(error).__name__}: {error}"
        # Nothing raised this on purpose, so it is a bug in Siltstone and not a mistake of the user.
        remedy = f"this is a bug in Siltstone: run again with {TRACEBACK_VARIABLE}=1 and report the traceback"
    say(f"error: {message}", err=True)
    if remedy:
        say(f"remedy: {remedy}", err=True)
    sys.exit(1)


def _file_error_text(error: OSError) -> str:
    """Without Python's "[Errno 2]"."""
    if error.filename is None or not error.strerror:
        return error.strerror or str(error)
    return f"{os.fsdecode(error.filename)}: {error.strerror}"


def fail_usage(error: click.UsageError) -> NoReturn:
    """Print click's message about wrong usage, and a remedy when one is known; exit with code 2."""
    from siltstone.cli.options.usage import in_plain_words, usage_remedy

    in_plain_words(error)
    escape_error(error)
    error.show()
    remedy = usage_remedy(error)
    if remedy:
        say(f"remedy: {remedy}", err=True)
    sys.exit(error.exit_code)


def _did_you_mean(name: str) -> str:
    import difflib

    near = difflib.get_close_matches(name, COMMANDS, n=1)
    return f"Did you mean {near[0]!r}?" if near else "`siltstone --help` lists the commands."


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="siltstone", message="siltstone %(version)s")
def main() -> None:
    """A Kafka-compatible log whose records live in an object store and whose index lives in Postgres.

    \b
    Examples:
      siltstone dev                               # a stack on this machine, bootstrap 127.0.0.1:9092
      siltstone topics create orders --partitions 6
      siltstone fsck --data ./siltstone-data
    """
