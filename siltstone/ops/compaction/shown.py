"""Each partition as `siltstone topics describe` and `siltstone compact` show it: its figures and its chief reason."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from siltstone.ops.compaction.evidence import Reason, joined
from siltstone.ops.compaction.report import PartitionState
from siltstone.ops.compaction.texts import BLOCKED, DUE, FILE_IN_TROUBLE, OBJECT_LOST

_TROUBLE = frozenset({OBJECT_LOST.code, FILE_IN_TROUBLE.code})
_BLOCKED = frozenset(each.code for each in BLOCKED.values())


def states_json(states: Sequence[PartitionState], reasons: Sequence[Reason]) -> list[dict[str, Any]]:
    of = _by_partition(reasons)
    return [_state_json(each, of.get(each.view.partition, ())) for each in states]


def _state_json(each: PartitionState, reasons: Sequence[Reason]) -> dict[str, Any]:
    trouble, chief = _trouble_text(reasons), _chief(reasons)
    says = "" if chief is None else chief.says.removeprefix(f"partition {each.view.partition} ")
    is_blocked = chief is not None and chief.code in _BLOCKED
    return {
        "partition": each.view.partition,
        "log_start_offset": each.view.log_start_offset,
        "cleaned_through_offset": each.view.cleaned_through_offset,
        "leveled_through_offset": each.dirtiness.leveled_through_offset,
        "high_watermark": each.view.high_watermark,
        "dirty_ratio": round(each.dirtiness.ratio, 4),
        "clean_bytes": each.dirtiness.clean_bytes,
        "dirty_bytes": each.dirtiness.dirty_bytes,
        "head_offsets": each.head_offsets,
        "head_bytes": each.head_bytes,
        "l0_offsets": each.l0_offsets,
        "last_cleaned_ms": each.view.last_cleaned_ms,
        "passes_needed": each.view.passes_needed,
        "requested_through_offset": each.view.requested_through_offset,
        "due": each.due,
        "waits": "" if each.due or trouble else says,
        "held": says if each.due and is_blocked else "",
        "trouble": trouble,
    }


def brief_lines(reasons: Sequence[Reason]) -> Sequence[str]:
    """At most two lines per partition: its first trouble, and the pass that is due or the wait for one.

    A partition in trouble gets no line about its wait. Partitions with the same words share a line.
    """
    chosen: list[Reason] = []
    for own in _by_partition(reasons).values():
        trouble, chief = _first_trouble(own), _chief(own)
        if trouble is not None:
            chosen.append(trouble)
        if chief is not None and (trouble is None or chief.code in {DUE.code, *_BLOCKED}):
            chosen.append(chief)
    return [line.says for line in joined(chosen)]


def troubles_json(reasons: Sequence[Reason]) -> list[dict[str, Any]]:
    texts = {partition: _trouble_text(own) for partition, own in _by_partition(reasons).items()}
    return [{"partition": partition, "says": says} for partition, says in texts.items() if says]


def _by_partition(reasons: Sequence[Reason]) -> Mapping[int, Sequence[Reason]]:
    found: dict[int, list[Reason]] = defaultdict(list)
    for each in reasons:
        if each.partition is not None:
            found[each.partition].append(each)
    return found


def _trouble_text(reasons: Sequence[Reason]) -> str:
    """The first records that merges fail to read; empty if there are none."""
    found = _first_trouble(reasons)
    return "" if found is None else found.says.removeprefix(f"partition {found.partition} has ")


def _first_trouble(reasons: Sequence[Reason]) -> Reason | None:
    return next((each for each in reasons if each.code in _TROUBLE), None)


def _chief(reasons: Sequence[Reason]) -> Reason | None:
    """The last brief one: the rules come in an order in which a later one tells more about the next pass."""
    return next((each for each in reversed(reasons) if each.brief), None)
