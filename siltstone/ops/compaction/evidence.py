"""The facts from which a topic's compaction is explained, and the reasons that an explanation consists of. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from compactor.planning.plan import Plan
from compactor.planning.spec import PlanOptions
from metadata.contract.compactors import CompactionView
from metadata.contract.jobs import MergeJob
from runtime.text import age_text, numbers_text
from siltstone.ops.compaction.report import PartitionState
from siltstone.ops.compaction.texts import Text
from siltstone.ops.compaction.trouble import Troubled
from siltstone.ops.hint_options import NO_HINT_OPTIONS, HintOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The state of the system beside the topic's partitions."""

    now_ms: int
    options: PlanOptions
    view: CompactionView | None = None
    plan: Plan | None = None
    """The planner's answer to `view` and `options`."""
    jobs: Sequence[MergeJob] = ()
    """Live and recently failed jobs, newest first."""
    unreadable_jobs: Sequence[MergeJob] = ()
    """Done jobs whose result has `UNREADABLE`, newest first; the store keeps them as long as their output lives."""
    troubled: Mapping[int, Sequence[Troubled]] = field(default_factory=dict[int, Sequence[Troubled]])
    """By partition id: records in files that merges fail to read."""
    compactors: Sequence[tuple[int, str]] = ()
    stall_files: int = 0
    """Live L0 files above which producers are slowed down (`l0.stall.files`); 0 = never."""
    memory_bytes: int = 0
    """Memory of the merges of one compactor (`compactor.memory.bytes`)."""
    young_l0_from: Mapping[int, int] = field(default_factory=dict[int, int])
    """Partition id -> the first offset in L0 that is younger than `min.compaction.lag.ms`, if there is one."""
    hints: HintOptions = NO_HINT_OPTIONS
    """Options that printed commands repeat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One sentence of an explanation, and its remedy (empty: nothing has to be done)."""

    code: str
    partition: int | None
    """None: the whole topic."""
    says: str
    """Begins with "partition N " unless it is about the whole topic."""
    remedy: str = ""
    brief: bool = False
    """As in `Text`."""

    def as_json(self) -> dict[str, Any]:
        return {"code": self.code, "partition": self.partition, "says": self.says, "remedy": self.remedy}


def reason_of(text: Text, topic: str, evidence: Evidence, partition: int | None = None, **fields: Any) -> Reason:
    """A row of `texts.py` with its fields filled in."""
    hints = evidence.hints
    known = {
        "topic": topic,
        "places": hints.places,
        "agents": hints.agents,
        "compactor": hints.compactor,
        "now": f"`siltstone compact {topic} --now{hints.places}`",
        "options": evidence.options,
        **fields,
    }
    says = text.says.format_map(known)
    if partition is not None:
        says = f"partition {partition} {says}"
    return Reason(
        code=text.code, partition=partition, says=says, remedy=text.remedy.format_map(known), brief=text.brief
    )


@dataclass(frozen=True, slots=True)
class Case:
    """One partition, as the rules of an explanation see it."""

    state: PartitionState
    evidence: Evidence
    configs: Mapping[str, str]
    topic: str
    jobs: Sequence[MergeJob]
    """The jobs of the evidence that concern it."""

    @property
    def held_from(self) -> int | None:
        """The first offset that `min.compaction.lag.ms` keeps from being cleaned; None if there is none."""
        view, dirty = self.state.view, self.state.dirtiness
        if dirty.held_by_lag:
            return dirty.first_uncleanable_offset
        return self.evidence.young_l0_from.get(view.partition_id)

    @property
    def is_all_held(self) -> bool:
        """Whether all records that no pass has seen are too young to be cleaned."""
        held_from = self.held_from
        return held_from is not None and held_from <= self.state.dirtiness.cleaned_through_offset

    @property
    def troubled(self) -> Sequence[Troubled]:
        return self.evidence.troubled.get(self.state.view.partition_id, ())

    def reason(self, text: Text, **fields: Any) -> Reason:
        return reason_of(text, self.topic, self.evidence, self.state.view.partition, **fields)


# ---- words that several rules use


def job_name(job: MergeJob) -> str:
    """ "job 12 (forced)" """
    return f"job {job.job_id} ({job.kind})"


def ago_text(job: MergeJob, now_ms: int) -> str:
    """ " 2m00s ago", since the job ended; empty if that is not known."""
    return "" if job.finished_ms is None else f" {age_text(now_ms - job.finished_ms)} ago"


# ---- many partitions with the same reason


class Line(NamedTuple):
    says: str
    remedy: str


def joined(reasons: Iterable[Reason]) -> Sequence[Line]:
    """For people: a sentence that holds for several partitions word for word appears once, at the first of them."""
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
