"""The options that a printed hint repeats from the command line, so that the hint runs as it is printed. Pure.

Each is empty or begins with a space, so that it can follow a command: f"siltstone topics explain {topic}{places}".
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from runtime.passwords import masked


@dataclass(frozen=True, slots=True, kw_only=True)
class HintOptions:
    places: str = ""
    """For commands that read the metadata: --data or --metadata, with the settings that were given."""
    agents: str = ""
    """For commands that ask an agent: --data or --bootstrap."""
    compactor: str = "siltstone compactor"
    """The command that starts a compactor for this system."""


NO_HINT_OPTIONS = HintOptions()


def option(name: str, value: str) -> str:
    """ " --name value", quoted for a shell; empty for an empty value. Passwords in URLs are masked."""
    return f" --{name} {shlex.quote(masked(value))}" if value else ""


def hint_options_for(
    *, data: str, metadata_url: str, object_store_url: str, config: str, assignments: Sequence[str], runs: bool
) -> HintOptions:
    """Arguments are as given on the command line, empty if they were not. `runs`: `siltstone dev` runs on `data`."""
    settings = option("config", config) + "".join(option("set", each) for each in assignments)
    if data:
        place = option("data", data)
        start = f"siltstone compactor{place}" if runs else f"siltstone dev{place}"
        return HintOptions(places=place + settings, agents=place, compactor=start + settings)
    place = option("metadata", metadata_url) + option("object-store", object_store_url) + settings
    return HintOptions(places=place, compactor=f"siltstone compactor{place}")
