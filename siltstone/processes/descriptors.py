"""Whether this process may open as many files as its clients need.

A process at its limit accepts no client, and cannot reach its stores either, so an agent keeps some descriptors back.
The soft limit, often 1,024, is there for programs that use `select`. This one does not, and takes the hard limit.
"""

from __future__ import annotations

import resource
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from agents.listeners.admission import DESCRIPTORS_RESERVED, connections_that_fit
from runtime.errors import BadInputError
from runtime.logging import get_logger
from runtime.settings.table import Settings

_log = get_logger(__name__)


class DescriptorsError(BadInputError):
    """The process may open too few files to serve anybody."""


def settings_within_descriptors(settings: Settings) -> Settings:
    """The settings, with as many connections as fit. Raises DescriptorsError."""
    open_now = len(list(Path("/proc/self/fd").iterdir())) if Path("/proc/self/fd").exists() else 0
    limit = _raised_limit(settings.connections_max + open_now + DESCRIPTORS_RESERVED)
    fitting = connections_that_fit(settings.connections_max, descriptors_max=limit, open_now=open_now)
    if fitting == settings.connections_max:
        return settings
    if fitting < 1:
        raise DescriptorsError(
            f"this process may open {limit} files, and an agent needs {open_now + DESCRIPTORS_RESERVED} before its"
            " first client",
            remedy="raise the limit of open files (`ulimit -n`, LimitNOFILE=); 65,536 does no harm",
        )
    _log.warning(
        "fewer connections than connections.max, because this process may open too few files",
        connections=fitting,
        connections_max=settings.connections_max,
        files_max=limit,
        remedy="raise the limit of open files (`ulimit -n`, LimitNOFILE=)",
    )
    return replace(settings, connections_max=fitting)


def _raised_limit(wanted: int) -> int:
    """The limit of open files after it was raised to `wanted`, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    if soft < wanted:
        raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
            soft = raised
    return soft
