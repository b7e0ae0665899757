"""From the results of all units to the one commit of a heavy merge. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from compactor.cleaning.unreadable import PARTITIONS_TOLD_MAX
from compactor.heavy.manifest import ManifestMismatchError, UnitResult, check_parts, check_result
from compactor.heavy.plan.parts import is_part
from compactor.heavy.plan.units import HeavyPlan, Unit, UnitKind
from compactor.merging.kway_merge import holds_live
from compactor.merging.ranges import joined_ranges
from metadata.contract.jobs import CleanedPartition, CommitMerge, OutputFile
from metadata.contract.leveled import LeveledExtent
from metadata.rules.jobs import UNREADABLE
from runtime.errors import SiltstoneError
from wire.crc import joined_crc32c

_LARGEST = ("passes", "partition_keys_max")
"""Figures of which the largest counts; all other numbers of a summary are added up."""
_OF_KEYS = ("gets",)
"""The figures of KEYS units that count: their records and bytes are counted by the REWRITE units."""


class PartsDamagedError(SiltstoneError):
    """Extents that the plan divides are not what was written. Which records of a part are to blame is not known, so
    nothing may be committed; a plan in which these extents stay whole copies them as they are."""

    def __init__(self, extents: Sequence[LeveledExtent]) -> None:
        first = extents[0]
        super().__init__(
            f"{first.key!r}, partition {first.partition_id}, offset {first.base_offset}: its parts are not as they were"
            f" written ({len(extents)} such extents)"
        )
        self.extent_ids = frozenset(each.extent_id for each in extents)


def combine(plan: HeavyPlan, results: Mapping[int, UnitResult], *, epoch: int) -> CommitMerge:
    """`results`: the result of every unit of the plan, by unit; `epoch`: the epoch of the claim that commits.

    Raises ManifestMismatchError for missing results and for results that do not fit the plan's units;
    PartsDamagedError.
    """
    missing = sorted({unit.number for unit in plan.units} - results.keys())
    if missing:
        raise ManifestMismatchError(f"unit {missing[0]} of job {plan.job_id} has no result ({len(missing)} in all)")
    outputs: list[OutputFile] = []
    cleaned: list[tuple[Unit, CleanedPartition]] = []
    ranges: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for unit in plan.units:
        result = results[unit.number]
        check_result(plan, unit, result)
        check_parts(plan, unit, result)
        outputs += result.outputs
        cleaned += ((unit, each) for each in result.cleaned)
        for partition_id, covered in result.covered.items():
            ranges[partition_id] += covered
    _check_parts(plan, results)
    _check_records(plan, outputs)
    if len({each.key for each in outputs}) != len(outputs):
        raise ManifestMismatchError(f"two units of job {plan.job_id} name the same output")
    return CommitMerge(
        job_id=plan.job_id,
        epoch=epoch,
        outputs=tuple(outputs),
        # Units of one partition finish in any order; the commit compares ranges that are joined.
        covered={id_: tuple(joined_ranges(sorted(found))) for id_, found in sorted(ranges.items())},
        cleaned=join_cleaned(plan, cleaned),
        summary=_summary(plan, results),
        commit_by_ms=plan.commit_by_ms,
    )


def _check_parts(plan: HeavyPlan, results: Mapping[int, UnitResult]) -> None:
    """Raises PartsDamagedError for extents whose parts were found corrupt, or have another CRC-32C together."""
    # Keys and records were read apart, and each read may have met other bytes.
    read: dict[bool, dict[tuple[int, int], int | None]] = {True: {}, False: {}}
    for unit in plan.units:
        read[unit.kind is UnitKind.KEYS] |= {
            (part.partition_id, part.base_offset): part.crc32c for part in results[unit.number].parts
        }
    damaged = [
        extent
        for extent in plan.divided
        if not _is_sound(extent, plan.parts[extent.extent_id], read[False])
        or (extent.partition_id in plan.sliced and not _is_sound(extent, plan.parts[extent.extent_id], read[True]))
    ]
    if damaged:
        raise PartsDamagedError(damaged)


def _is_sound(
    extent: LeveledExtent, parts: Sequence[LeveledExtent], crcs: Mapping[tuple[int, int], int | None]
) -> bool:
    joined = 0
    for part in parts:
        crc = crcs[part.partition_id, part.base_offset]
        if crc is None:
            return False
        joined = joined_crc32c(joined, crc, part.length)
    return joined == extent.crc32c


def _check_records(plan: HeavyPlan, outputs: Iterable[OutputFile]) -> None:
    """Raises ManifestMismatchError unless copied partitions whose extents were divided have all their records. Other
    partitions were checked unit by unit."""
    copied = {each.partition_id for each in plan.divided} - plan.partition_specs.keys()
    written: Counter[int] = Counter()
    for file in outputs:
        for each in file.extents:
            written[each.partition_id] += each.record_count
    held: Counter[int] = Counter()
    for each in (*plan.divided, *plan.extents):
        if each.partition_id in copied and not is_part(each):
            held[each.partition_id] += each.record_count
    for partition_id in sorted(copied):
        if written[partition_id] != held[partition_id]:
            raise ManifestMismatchError(
                f"the outputs of job {plan.job_id} hold {written[partition_id]} records of partition {partition_id},"
                f" its inputs {held[partition_id]}"
            )


def join_cleaned(plan: HeavyPlan, reported: Iterable[tuple[Unit, CleanedPartition]]) -> Sequence[CleanedPartition]:
    """One entry per deduped partition, from those of all its slices. Raises ManifestMismatchError."""
    cleaned: dict[int, CleanedPartition] = {}
    left: defaultdict[int, set[int]] = defaultdict(set)
    """The markers of aborted transactions of which a slice leaves something."""
    for unit, each in reported:
        known = cleaned.setdefault(each.partition_id, each)
        # Every slice reports the whole partition, so all of them must say the same.
        if replace(known, aborted_gone=each.aborted_gone) != each:
            raise ManifestMismatchError(
                f"two slices of partition {each.partition_id} disagree about how far it is cleaned"
            )
        # A transaction may lie in several slices, and it is gone when none of them leaves anything of it.
        listed = plan.stretch_of(unit).specs[each.partition_id].aborted
        left[each.partition_id] |= {marker for _, _, marker in listed} - set(each.aborted_gone)
    return tuple(replace(each, aborted_gone=_gone(plan, id_, left[id_])) for id_, each in sorted(cleaned.items()))


def _gone(plan: HeavyPlan, partition_id: int, left: Container[int]) -> Sequence[int]:
    """Leaves out also transactions of which the inputs of the plan hold only a part: a slice cannot know that."""
    listed = plan.partition_specs[partition_id].aborted
    if not listed:
        return ()
    inputs = plan.inputs_of(partition_id)
    return tuple(marker for _, first, marker in listed if marker not in left and holds_live(inputs, first, marker))


def _summary(plan: HeavyPlan, results: Mapping[int, UnitResult]) -> Mapping[str, Any]:
    total: dict[str, Any] = {"units": len(plan.units), "unit_seconds": 0.0}
    unreadable: list[Any] = []
    for unit in plan.units:
        result = results[unit.number]
        total["unit_seconds"] = round(total["unit_seconds"] + result.seconds, 3)
        for name, value in result.summary.items():
            if unit.kind is UnitKind.KEYS and name not in _OF_KEYS:
                continue
            if name == UNREADABLE:
                unreadable += value
            elif type(value) is int:
                total[name] = max(total.get(name, 0), value) if name in _LARGEST else total.get(name, 0) + value
    return {**total, **({UNREADABLE: _told(unreadable)} if unreadable else {})}


def _told(unreadable: Sequence[Any]) -> Sequence[Any]:
    """One entry per partition: every slice of a partition has an entry of its own."""
    by_partition: dict[Any, dict[str, Any]] = {}
    for each in unreadable:
        known = by_partition.get(each["partition_id"])
        if known is None:
            by_partition[each["partition_id"]] = dict(each)
        else:
            known["batches"] += each["batches"]
    return list(by_partition.values())[:PARTITIONS_TOLD_MAX]
