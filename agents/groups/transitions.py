"""The legal transitions of a consumer group: (state, event) -> the states that may follow. A missing entry is a bug.

The machine (`group.py`, `joining.py`, `rebalance.py`) decides which of them follows; this table is the whole picture.
`Group.handle` checks each step against it, and `tests/unit/agents/groups/test_transitions.py` shows that each entry
is reached. One event may pass through PreparingRebalance without resting there: when nobody has to be waited for, the
group goes on to CompletingRebalance, or to Empty when no member is left.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from agents.groups.events import (
    CommitRequested,
    DeleteRequested,
    Event,
    GroupState,
    HeartbeatRequested,
    JoinRequested,
    LeaveRequested,
    Saved,
    SaveFailed,
    SyncRequested,
    Unloaded,
    Woke,
)
from runtime.errors import BugError

_EMPTY = GroupState.EMPTY
_PREPARING = GroupState.PREPARING_REBALANCE
_COMPLETING = GroupState.COMPLETING_REBALANCE
_STABLE = GroupState.STABLE
_DEAD = GroupState.DEAD

TRANSITIONS: Final[Mapping[GroupState, Mapping[type[Event], frozenset[GroupState]]]] = {
    _EMPTY: {
        JoinRequested: frozenset({_EMPTY, _PREPARING}),
        SyncRequested: frozenset({_EMPTY}),
        HeartbeatRequested: frozenset({_EMPTY}),
        LeaveRequested: frozenset({_EMPTY}),
        CommitRequested: frozenset({_EMPTY}),
        DeleteRequested: frozenset({_DEAD}),
        Saved: frozenset({_EMPTY}),
        SaveFailed: frozenset({_EMPTY}),
        Unloaded: frozenset({_DEAD}),
        Woke: frozenset({_EMPTY}),
    },
    _PREPARING: {
        JoinRequested: frozenset({_PREPARING, _COMPLETING}),
        SyncRequested: frozenset({_PREPARING}),
        HeartbeatRequested: frozenset({_PREPARING}),
        LeaveRequested: frozenset({_PREPARING, _COMPLETING, _EMPTY}),
        CommitRequested: frozenset({_PREPARING}),
        DeleteRequested: frozenset({_PREPARING}),
        Saved: frozenset({_PREPARING}),
        SaveFailed: frozenset({_PREPARING}),
        Unloaded: frozenset({_DEAD}),
        Woke: frozenset({_PREPARING, _COMPLETING, _EMPTY}),
    },
    _COMPLETING: {
        # A leader that is the only member and joins again starts the next generation at once.
        JoinRequested: frozenset({_COMPLETING, _PREPARING}),
        SyncRequested: frozenset({_COMPLETING}),
        HeartbeatRequested: frozenset({_COMPLETING}),
        LeaveRequested: frozenset({_COMPLETING, _PREPARING, _EMPTY}),
        CommitRequested: frozenset({_COMPLETING}),
        DeleteRequested: frozenset({_COMPLETING}),
        # The save of an older generation changes nothing.
        Saved: frozenset({_COMPLETING, _STABLE}),
        SaveFailed: frozenset({_COMPLETING, _PREPARING}),
        Unloaded: frozenset({_DEAD}),
        Woke: frozenset({_COMPLETING, _PREPARING, _EMPTY}),
    },
    _STABLE: {
        JoinRequested: frozenset({_STABLE, _PREPARING, _COMPLETING}),
        SyncRequested: frozenset({_STABLE}),
        HeartbeatRequested: frozenset({_STABLE}),
        # CompletingRebalance: only a static member is left whose replacement is being saved; its join is parked.
        LeaveRequested: frozenset({_STABLE, _PREPARING, _COMPLETING, _EMPTY}),
        CommitRequested: frozenset({_STABLE}),
        DeleteRequested: frozenset({_STABLE}),
        Saved: frozenset({_STABLE}),
        SaveFailed: frozenset({_STABLE}),
        Unloaded: frozenset({_DEAD}),
        Woke: frozenset({_STABLE, _PREPARING, _COMPLETING, _EMPTY}),
    },
    _DEAD: {
        JoinRequested: frozenset({_DEAD}),
        SyncRequested: frozenset({_DEAD}),
        HeartbeatRequested: frozenset({_DEAD}),
        LeaveRequested: frozenset({_DEAD}),
        CommitRequested: frozenset({_DEAD}),
        DeleteRequested: frozenset({_DEAD}),
        Saved: frozenset({_DEAD}),
        SaveFailed: frozenset({_DEAD}),
        Unloaded: frozenset({_DEAD}),
        Woke: frozenset({_DEAD}),
    },
}


def check_transition(before: GroupState, event: Event, after: GroupState) -> None:
    """Raises BugError for a transition that the table does not have."""
    if after not in TRANSITIONS[before][type(event)]:
        raise BugError(f"a consumer group went from {before} to {after} at {type(event).__name__}")
