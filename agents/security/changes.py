"""Lines of the audit log about users, ACLs and quotas that a client has changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from agents.request_context import client_principal
from runtime.logging import AUDIT_LOG, get_logger

T = TypeVar("T")

TOLD_MAX = 50
"""Parts of one change that are told one by one."""

_log = get_logger(AUDIT_LOG)


def tell_changes(changes: Sequence[T], facts_of: Callable[[T], tuple[str, Mapping[str, str]]]) -> None:
    """Tell what the client has changed, part by part: of very many the first, each with how many there are (`of`).
    `facts_of`: the event and the facts of a part."""
    by = client_principal()
    for change in changes[:TOLD_MAX]:
        event, facts = facts_of(change)
        _log.info(event, by=by, **facts, of=len(changes))
