"""The planner over any view: it never breaks a rule, it always satisfies some properties, and it comes to rest."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from compactor.planning.dirtiness import measure
from compactor.planning.draft import PlanDraft
from compactor.planning.plan import explain_plan, plan_merges
from compactor.planning.runs import runs, similar
from compactor.planning.spec import MIB, MergeKind, MergeSpec, PlanOptions
from metadata.contract.compactors import CompactionView, FileView, PartitionView
from metadata.contract.leveled import FileClass, LeveledExtent
from tests.fixtures.chance import examples
from tests.fixtures.plan_views import Outcome, a_file, a_partition, an_extent

NOW_MS = 1_000_000
OPTIONS = PlanOptions(
    l0_files_min=3,
    l0_bytes_min=8 * MIB,
    l0_job_files_max=4,
    l0_job_bytes_max=6 * MIB,
    l1_runs_min=3,
    l2_runs_min=3,
    l2_small_bytes=MIB,
    l2_plain_bytes_max=40 * MIB,
    merge_bytes_max=64 * MIB,
    daily_interval_ms=500_000,
    forced_dirty_bytes_min=2 * MIB,
    forced_dirty_wait_ms=100_000,
    forced_interval_ms=10_000,
    mostly_dead_bytes_min=MIB,
    purge_deadline_ms=600_000,
    expiry_margin_ms=1_000,
    retention_check_ms=3_000,
    jobs_max=6,
)
sizes = st.integers(1, 30 * MIB)
times = st.integers(0, NOW_MS)
maybe_times = st.none() | times
rarely = st.sampled_from([False, False, False, True])


def classes(level: int) -> st.SearchStrategy[FileClass | None]:
    return st.just(None) if level == 0 else st.sampled_from(FileClass)


@st.composite
def files(draw: st.DrawFn, file_id: int) -> FileView:
    level = draw(st.sampled_from([0, 0, 1, 1, 1, 2, 2, 2]))
    size = draw(sizes)
    lo = draw(st.integers(0, 50))
    return a_file(
        file_id,
        level,
        draw(classes(level)),
        lo=lo,
        hi=lo + draw(st.integers(0, 50)),  # the ranges overlap and contain one another
        run_id=draw(st.sampled_from([file_id, 1_000])) if level else file_id,
        size_bytes=size,
        live_bytes=draw(st.sampled_from([size, size, size // 3])) if level else size,
        created_ms=draw(times),
        oldest_dead_ms=draw(maybe_times) if level else None,
        expires_ms=draw(st.sampled_from([None, None, NOW_MS + 500, 2 * NOW_MS])) if level else None,
        trouble_until_ms=draw(st.sampled_from([0, 0, 0, NOW_MS + 500])),
    )


@st.composite
def partitions(draw: st.DrawFn, partition_id: int, places: list[int]) -> PartitionView:
    extents: list[LeveledExtent] = []
    offset = draw(st.sampled_from([0, 0, 0, 7]))
    for number in range(draw(st.integers(0, 6))) if places else ():
        last = offset + draw(st.integers(0, 20))
        extents.append(
            an_extent(
                partition_id * 100 + number,
                offset,
                last,
                draw(st.sampled_from(places)),
                partition_id=partition_id,
                length=draw(st.sampled_from([0, MIB // 2, 3 * MIB, 70 * MIB])),
                min_timestamp_ms=draw(times),
                max_timestamp_ms=draw(times),
            )
        )
        offset = last + 1 + draw(st.sampled_from([0, 0, 0, 5]))
    end = offset + draw(st.integers(0, 10))
    configs = {
        "min.compaction.lag.ms": str(draw(st.sampled_from([0, 0, 300_000]))),
        "min.cleanable.dirty.ratio": draw(st.sampled_from(["0", "0.5"])),
    }
    return a_partition(
        partition_id,
        extents,
        configs=configs,
        high_watermark=end,
        last_stable_offset=draw(st.integers(0, end)),
        log_start_offset=draw(st.sampled_from([0, 0, end // 2])),
        cleaned_through_offset=draw(st.integers(0, end)),
        last_cleaned_ms=draw(maybe_times),
        last_forced_ms=draw(maybe_times),
        passes_needed=draw(st.sampled_from([1, 1, 3])),
        requested_through_offset=draw(st.none() | st.integers(0, end)),
    )


@st.composite
def views(draw: st.DrawFn, *, busy: bool = True) -> CompactionView:
    found = [draw(files(file_id)) for file_id in range(1, draw(st.integers(0, 24)) + 1)]
    places = [each.file_id for each in found if each.level > 0]
    logs = [draw(partitions(number, places)) for number in range(1, draw(st.integers(0, 4)) + 1)]
    found = [_holding(each, logs) for each in found]
    busy_extents: set[int] = set()
    busy_files: set[int] = set()
    if busy:
        known = [extent for log in logs for extent in log.extents]
        busy_extents = {each.extent_id for each in known if draw(st.sampled_from([False, False, False, True]))}
        busy_files = {each.file_id for each in known if each.extent_id in busy_extents}
        busy_files |= {each.file_id for each in found if draw(st.sampled_from([False, False, False, True]))}
    return CompactionView(
        now_ms=NOW_MS,
        files=found,
        partitions=logs,
        busy_files=frozenset(busy_files),
        busy_extents=frozenset(busy_extents),
        live_jobs={"merge": draw(st.lists(sizes, max_size=3)), "forced": draw(st.lists(sizes, max_size=2))}
        if busy
        else {},
        last_daily_ms=draw(maybe_times),
        erasing_files={each: draw(st.sampled_from([0, NOW_MS, 2 * NOW_MS])) for each in places if draw(rarely)},
    )


def _holding(file: FileView, logs: list[PartitionView]) -> FileView:
    """At least the bytes of its extents, so that the extents that move out do not use up the file's bytes too early."""
    held = sum(extent.length for log in logs for extent in log.extents if extent.file_id == file.file_id)
    live_bytes = max(file.live_bytes, held)
    return replace(file, live_bytes=live_bytes, size_bytes=max(file.size_bytes, live_bytes))


def inputs_of(view: CompactionView, spec: MergeSpec) -> list[LeveledExtent]:
    files_, extents = set(spec.file_ids), set(spec.extent_ids)
    return [
        each
        for log in view.partitions
        for each in log.extents
        if each.last_offset >= log.log_start_offset and (each.file_id in files_ or each.extent_id in extents)
    ]


@given(views(), st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter(view: CompactionView, random: Any) -> None:
    def shuffled(rows: Any) -> list[Any]:
        return random.sample(list(rows), len(rows))

    logs = [replace(each, extents=shuffled(each.extents)) for each in view.partitions]
    turned = replace(view, files=shuffled(view.files), partitions=shuffled(logs))
    assert plan_merges(turned, OPTIONS) == plan_merges(view, OPTIONS)


@given(views())
def test_nothing_goes_into_two_specs(view: CompactionView) -> None:
    counts: Counter[tuple[str, int]] = Counter()
    for spec in plan_merges(view, OPTIONS):
        counts.update(("file", each) for each in (*spec.l0_file_ids, *spec.file_ids))
        counts.update(("extent", each.extent_id) for each in inputs_of(view, spec))
    assert [each for each, count in counts.items() if count > 1] == []


@given(views())
def test_nothing_forbidden_is_planned(view: CompactionView) -> None:
    by_id = {each.file_id: each for each in view.files}
    for spec in plan_merges(view, OPTIONS):
        taken = [by_id[each] for each in (*spec.l0_file_ids, *spec.file_ids)]
        assert not {each.file_id for each in taken} & view.busy_files
        assert not {each.extent_id for each in inputs_of(view, spec)} & view.busy_extents
        touched = {each.file_id for each in taken} | {each.file_id for each in inputs_of(view, spec)}
        assert all(by_id[each].trouble_until_ms <= NOW_MS for each in touched)
        if spec.kind not in (MergeKind.PURGE, MergeKind.ERASE):
            expiring = NOW_MS + OPTIONS.expiry_margin_ms
            plain = [by_id[each] for each in touched if by_id[each].file_class is not FileClass.COMPACTED]
            assert all((each.expires_ms or 2 * NOW_MS) > expiring for each in plain)
            if spec.kind is not MergeKind.LEVEL:
                assert spec.input_bytes <= OPTIONS.merge_bytes_max
        assert len({each.file_class for each in taken}) <= 1


@given(views())
def test_the_places_for_jobs_are_kept(view: CompactionView) -> None:
    kinds = Counter(spec.kind for spec in plan_merges(view, OPTIONS))
    assert kinds.pop(MergeKind.LEVEL, 0) <= OPTIONS.l0_jobs_max
    planned, live = sum(kinds.values()), sum(map(len, view.live_jobs.values()))
    assert planned == 0 or planned + live <= OPTIONS.jobs_max
    forced = len(view.live_jobs.get("forced", ()))
    assert kinds[MergeKind.FORCED] + forced <= max(OPTIONS.forced_jobs_max, forced)


@given(views(), st.integers(1, 4))
def test_merges_for_spark_and_others_have_places_of_their_own(view: CompactionView, heavy_jobs_max: int) -> None:
    options = replace(OPTIONS, spark=True, spark_bytes_min=15 * MIB, heavy_jobs_max=heavy_jobs_max)
    specs = [spec for spec in plan_merges(view, options) if spec.kind is not MergeKind.LEVEL]
    for is_heavy, most in ((True, heavy_jobs_max), (False, options.jobs_max)):
        # Spark runs no erase job, however large.
        planned = [
            spec.kind
            for spec in specs
            if (spec.input_bytes >= 15 * MIB and spec.kind is not MergeKind.ERASE) is is_heavy
        ]
        live = [kind for kind, found in view.live_jobs.items() for size in found if (size >= 15 * MIB) is is_heavy]
        assert not planned or len(planned) + len(live) <= most
        assert MergeKind.FORCED not in planned or (planned + live).count(MergeKind.FORCED) <= options.forced_jobs_max


@given(views())
def test_a_file_with_erased_keys_is_erased_once_its_erasure_begins_or_a_note_says_why(
    view: CompactionView,
) -> None:
    plan = explain_plan(view, OPTIONS)
    by_id = {each.file_id: each for each in view.files}
    due = {each for each, begin_ms in view.erasing_files.items() if begin_ms <= NOW_MS}
    planned: set[int] = set()
    for spec in plan.specs:
        if spec.kind is MergeKind.ERASE:
            # It takes whole files of one level and class, stays at that level, and copies what it does not erase.
            taken = [by_id[each] for each in spec.file_ids]
            assert due >= set(spec.file_ids) and {each.level for each in taken} == {spec.level}
            assert not spec.dedupe and not spec.partitions and not spec.l0_file_ids and not spec.extent_ids
            assert len(taken) == 1 or spec.input_bytes <= OPTIONS.output_bytes
            planned.update(spec.file_ids)
    # A file that is not planned has a note that says why.
    noted = {each for note in plan.notes if note.rule is MergeKind.ERASE for each in note.file_ids}
    assert planned | noted == due


@given(views())
def test_snapshots_say_what_the_inputs_hold(view: CompactionView) -> None:
    logs = {each.partition_id: each for each in view.partitions}
    for spec in plan_merges(view, OPTIONS):
        inputs = inputs_of(view, spec)
        if spec.dedupe:
            assert spec.partitions.keys() == {each.partition_id for each in inputs}
        for key, snapshot in spec.partitions.items():
            log, mine = logs[key], [each for each in inputs if each.partition_id == key]
            # every offset from the log start to the end of the stretch lies in an input, and the next one in none
            held = {offset for each in mine for offset in range(each.base_offset, each.last_offset + 1)}
            assert held >= set(range(log.log_start_offset, snapshot.whole_through_offset))
            assert snapshot.whole_through_offset not in held
            assert snapshot.first_uncleanable_offset == measure(log, now_ms=NOW_MS).first_uncleanable_offset
            assert snapshot.delete_horizon_ms == NOW_MS + spec.limit_ms + OPTIONS.grace_ms // 2 + 86_400_000
        if spec.kind is MergeKind.FORCED:
            [snapshot] = spec.partitions.values()
            end = max(each.last_offset for each in inputs) + 1
            assert snapshot.whole_through_offset == end


@settings(deadline=None, max_examples=examples(60))
@given(views(busy=False), st.sampled_from([0.1, 0.7, 1.0]))
def test_planning_comes_to_rest_with_few_runs(view: CompactionView, kept: float) -> None:
    # given a view in which nothing waits for ever, though some of it is past its time and still there, and
    # merges that all succeed
    free = [
        replace(each, expires_ms=0 if each.level and each.file_id % 3 else None, trouble_until_ms=0)
        for each in view.files
    ]
    outcome = Outcome(replace(view, files=free), kept=kept)
    options = replace(OPTIONS, daily_interval_ms=10**9)
    # when plans are carried out until no plan has work
    for _ in range(60):
        specs = plan_merges(outcome.view, options)
        if not specs and outcome.view.now_ms > NOW_MS + 200_000:
            break
        outcome.apply(specs, later_ms=20_000)
    # then this comes to an end, no L0 is left, and no rule finds enough runs, however their ranges lie
    assert specs == []
    files = [replace(each, expires_ms=None) for each in outcome.view.files]
    draft = PlanDraft(replace(outcome.view, files=files), options)
    assert [each for each in draft.view.files if each.level == 0] == []
    for file_class in FileClass:
        assert len(runs(draft, 1, file_class)) < options.l1_runs_min
        found = runs(draft, 2, file_class)
        if file_class is FileClass.PLAIN:
            found = [each for each in found if each.bytes < options.l2_plain_bytes_max]
        assert not similar(found, options)
