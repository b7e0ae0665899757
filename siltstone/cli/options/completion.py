"""Names that a shell completes (docs/command-line.md): those of the topics that the agents have."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from runtime.errors import SiltstoneError

TIMEOUT_MS = 1_000
"""Nobody waits longer for a TAB."""


class TopicName(click.ParamType[str]):
    """The name of a topic. Any text is one; a shell completes those that exist."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return str(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from siltstone.cli.options.agent_options import DEFAULT_BOOTSTRAP, running_bootstrap

        data: Path | None = ctx.params.get("data")
        try:
            with ctx:  # who typed what is asked of the running context, and it closes with what it learned
                bootstrap = running_bootstrap(data, ctx.params.get("bootstrap") or DEFAULT_BOOTSTRAP)
                names = [] if bootstrap is None else asyncio.run(_topics(bootstrap))
        except (SiltstoneError, OSError):  # no agent, no names: a message would break the line that is typed
            return []
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


async def _topics(bootstrap: str) -> list[str]:
    from siltstone.kafka.client import connected

    async with connected(bootstrap, timeout_ms=TIMEOUT_MS) as client:
        topics = (await client.metadata()).topics
        return sorted(topic.name for topic in topics if topic.name and topic.name.isprintable())


TOPIC = TopicName()
