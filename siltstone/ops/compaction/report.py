"""The reasons for people, and the figures and chief reasons of `topics describe` and `compact` without --now. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from runtime.text import numbers_text
from siltstone.ops.compaction.causes import BLOCKED, Cause
from siltstone.ops.compaction.evidence import PartitionState
from siltstone.ops.compaction.reasons import Reason

_TROUBLE = frozenset({Cause.OBJECT_LOST, Cause.FILE_IN_TROUBLE})
_HELD = frozenset(BLOCKED.values())
"""A pass is due, but not planned."""
_WAITS = frozenset(
    {Cause.IN_L0, Cause.TOO_YOUNG, Cause.OPEN_TRANSACTION}
    | {Cause.PAST_MAX_LAG, Cause.BELOW_THE_DIRTY_RATIO, Cause.FORCED_LATELY, Cause.FEW_DIRTY_BYTES, Cause.IN_THE_WAY}
)
_ABOUT_PASS = _WAITS | _HELD | {Cause.DUE}


def joined(reasons: Iterable[Reason]) -> Sequence[tuple[str, str]]:
    """(sentence, remedy). A sentence that holds for several partitions word for word appears once, at the first."""
    found: dict[tuple[str, str], list[int]] = {}
    for each in reasons:
        numbers = found.setdefault((each.text, each.remedy), [])
        numbers += [] if each.partition is None else [each.partition]
    return [(_subject(numbers) + text, remedy) for (text, remedy), numbers in found.items()]


def _subject(partitions: Sequence[int]) -> str:
    if len(partitions) > 1:
        return f"Each of partitions {numbers_text(partitions)} "
    return f"Partition {partitions[0]} " if partitions else ""


def states_json(states: Sequence[PartitionState], reasons: Sequence[Reason]) -> list[dict[str, Any]]:
    troubles, chiefs = _chosen(reasons)
    rows: list[dict[str, Any]] = []
    for each in states:
        view, dirty, chief = each.view, each.dirtiness, chiefs.get(each.view.partition)
        trouble = _trouble_text(troubles.get(view.partition))
        row = {
            "partition": view.partition,
            "log_start_offset": view.log_start_offset,
            "cleaned_through_offset": view.cleaned_through_offset,
            "leveled_through_offset": dirty.leveled_through_offset,
            "high_watermark": view.high_watermark,
            "dirty_ratio": round(dirty.ratio, 4),
            "clean_bytes": dirty.clean_bytes,
            "dirty_bytes": dirty.dirty_bytes,
            "head_offsets": each.head_offsets,
            "head_bytes": each.head_bytes,
            "l0_offsets": each.l0_offsets,
            "last_cleaned_ms": view.last_cleaned_ms,
            "passes_needed": view.passes_needed,
            "requested_through_offset": view.requested_through_offset,
            "due": each.due,
            "waits": chief.text if chief and not each.due and not trouble else "",
            "held": chief.text if chief and each.due and chief.cause in _HELD else "",
            "trouble": trouble,
        }
        rows.append(row)
    return rows


def brief_lines(reasons: Sequence[Reason]) -> Sequence[str]:
    """At most two lines per partition: its first trouble, and the pass that is due or the wait for one.

    A partition in trouble gets no line about its wait.
    """
    troubles, chiefs = _chosen(reasons)
    shown = [each for each in chiefs.values() if each.partition not in troubles or each.cause not in _WAITS]
    chosen = {id(each) for each in (*troubles.values(), *shown)}
    return [text for text, _ in joined(each for each in reasons if id(each) in chosen)]


def troubles_json(reasons: Sequence[Reason]) -> list[dict[str, Any]]:
    troubles, _ = _chosen(reasons)
    return [{"partition": number, "says": _trouble_text(each)} for number, each in troubles.items()]


def _trouble_text(trouble: Reason | None) -> str:
    return "" if trouble is None else trouble.text.removeprefix("has ")


def _chosen(reasons: Sequence[Reason]) -> tuple[Mapping[int | None, Reason], Mapping[int | None, Reason]]:
    """By partition: its first trouble, and its last reason about the next pass. (A later rule tells more about it.)"""
    troubles: dict[int | None, Reason] = {}
    for each in reasons:
        if each.cause in _TROUBLE:
            troubles.setdefault(each.partition, each)
    chiefs = {each.partition: each for each in reasons if each.cause in _ABOUT_PASS and not each.is_about_file}
    return troubles, chiefs
