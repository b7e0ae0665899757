"""NAME=VALUE words for topic configs, and what is said about them. For `topics create` and `topics alter`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import click

from metadata.configs.topic import TOPIC_CONFIGS
from siltstone.cli.options.agent_options import acts
from siltstone.terminal.plain import say

GREW = (
    "warning: the topic is compacted, and clients now send some keys to another partition. The last record of such a"
    " key stays in its old partition for ever, so readers may take an old value for the latest"
)


def note_without_effect(configs: Iterable[str]) -> None:
    """Print a note to stderr for each config that was set but has no effect."""
    for config in configs:
        if not acts(config):
            say(f"note: {config} is stored, but has no effect in this version: {TOPIC_CONFIGS[config].doc}", err=True)


def parse_configs(pairs: Sequence[str]) -> dict[str, str]:
    """Read NAME=VALUE words. A value may contain "=". Raises click.UsageError."""
    configs: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise click.UsageError(f"{pair!r} is not NAME=VALUE")
        if name.strip() in configs:
            raise click.UsageError(f"{name.strip()} is given twice")
        configs[name.strip()] = value.strip()
    return configs
