"""What is known when a topic's compaction is explained, and what an explanation is made of. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from compactor.planning.plan import Plan
from compactor.planning.spec import PlanOptions
from metadata.contract.compaction import CompactionView, MergeJob
from siltstone.ops.compaction.report import PartitionState
from siltstone.ops.compaction.trouble import Troubled
from siltstone.ops.compaction.waits import numbers_text
from siltstone.ops.hint_options import NO_WORDS, CommandWords


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What else is known of the system when a topic is explained."""

    now_ms: int
    options: PlanOptions
    view: CompactionView | None = None
    plan: Plan | None = None
    """What the planner makes of `view` and `options`."""
    jobs: Sequence[MergeJob] = ()
    """Live and lately failed ones, newest first."""
    unreadable_jobs: Sequence[MergeJob] = ()
    """Done ones whose result has `UNREADABLE`, newest first: kept as long as what they wrote lives."""
    troubled: Mapping[int, Sequence[Troubled]] = field(default_factory=dict[int, Sequence[Troubled]])
    """By partition id: what lies in files that merges fail to read."""
    compactors: Sequence[tuple[int, str]] = ()
    stall_files: int = 0
    """Live L0 files above which producers are slowed down (`l0.stall.files`); 0 = never."""
    memory_bytes: int = 0
    """What the merges of one compactor share (`compactor.memory.bytes`)."""
    young_l0_from: Mapping[int, int] = field(default_factory=dict[int, int])
    """Partition id -> the first offset in L0 that is younger than `min.compaction.lag.ms`, where there is one."""
    words: CommandWords = NO_WORDS
    """What remedies repeat of the command line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One sentence of an explanation, and what to do about it (empty: nothing has to be done)."""

    code: str
    partition: int | None
    """None: the whole topic."""
    says: str
    """Of one partition it begins with "partition N "."""
    remedy: str = ""

    def as_json(self) -> dict[str, Any]:
        return {"code": self.code, "partition": self.partition, "says": self.says, "remedy": self.remedy}


@dataclass(frozen=True, slots=True)
class Case:
    """One partition, as the rules of an explanation look at it."""

    state: PartitionState
    evidence: Evidence
    configs: Mapping[str, str]
    topic: str
    jobs: Sequence[MergeJob]
    """Those of the evidence that have to do with it."""

    @property
    def held_from(self) -> int | None:
        """The first offset that `min.compaction.lag.ms` keeps from being cleaned; None where there is none."""
        view, dirty = self.state.view, self.state.dirtiness
        if dirty.held_by_lag:
            return dirty.first_uncleanable_offset
        return self.evidence.young_l0_from.get(view.partition_id)

    @property
    def is_all_held(self) -> bool:
        """Nothing that no pass has seen may be cleaned yet."""
        held_from = self.held_from
        return held_from is not None and held_from <= self.state.dirtiness.cleaned_through_offset

    @property
    def troubled(self) -> Sequence[Troubled]:
        return self.evidence.troubled.get(self.state.view.partition_id, ())

    @property
    def places(self) -> str:
        return self.evidence.words.places

    @property
    def now_command(self) -> str:
        return f"`siltstone compact {self.topic} --now{self.places}`"

    def reason(self, code: str, says: str, remedy: str = "") -> Reason:
        number = self.state.view.partition
        return Reason(code=code, partition=number, says=f"partition {number} {says}", remedy=remedy)


# ---- many partitions that say the same


class Line(NamedTuple):
    says: str
    remedy: str


def joined(reasons: Iterable[Reason]) -> Sequence[Line]:
    """For people: what several partitions say word for word is said once, where the first of them said it."""
    numbers: dict[tuple[str, str], list[int]] = {}
    lines: list[tuple[str, str] | Line] = []
    for reason in reasons:
        if reason.partition is None:
            lines.append(Line(reason.says, reason.remedy))
            continue
        key = (reason.says.removeprefix(f"partition {reason.partition} "), reason.remedy)
        if key not in numbers:
            lines.append(key)
        numbers.setdefault(key, []).append(reason.partition)
    return [each if isinstance(each, Line) else _line(numbers[each], *each) for each in lines]


def _line(partitions: Sequence[int], says: str, remedy: str) -> Line:
    who = f"Partition {partitions[0]}" if len(partitions) == 1 else f"Each of partitions {numbers_text(partitions)}"
    return Line(f"{who} {says}", remedy)
