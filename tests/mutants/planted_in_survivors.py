"""Bugs that no test saw once: a check dropped, a wait left out, an order reversed. Each has its test now."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_LIST_OFFSETS = "tests/integration/write_and_read/test_list_offsets.py"
_PRODUCERS = "tests/unit/siltstone/ops/test_rebuild_producers.py"
_UPLOAD = ("tests/unit/storage/test_s3.py::test_an_upload_in_parts_is_completed_under_the_crc_of_the_whole_object",)
_GAP = (f"{_PRODUCERS}::test_after_a_gap_in_the_sequence_the_state_begins_again",)
_IN_PARTS = (
    "tests/integration/kafka/test_retrying.py::test_a_batch_that_is_too_large_is_written_in_parts_and_in_its_order",
)
_BY_KEY = (
    "tests/integration/kafka/test_key_lookup.py"
    "::test_each_record_of_a_log_is_found_by_its_key_and_the_newest_of_several",
)
_SHORTER = ("tests/unit/siltstone/cli/test_losses.py::test_a_limit_is_shorter_when_it_removes_what_the_old_one_kept",)
_DELETED = ("tests/unit/storage/test_local.py::test_a_delete_is_on_disk_before_it_is_answered",)

SURVIVORS = (
    Mutant(
        name="an-upload-in-parts-is-completed-without-its-crc",
        file="storage/s3/store.py",
        text="            ChecksumCRC32C=encode_crc32c(crc32c),\n            ChecksumType=",
        replacement="            ChecksumType=",
        tests=_UPLOAD,
    ),
    Mutant(
        name="an-upload-in-parts-has-the-crc-of-its-last-part",
        file="storage/s3/store.py",
        text="self._crc32c = crc32c_of(part, self._crc32c)",
        replacement="self._crc32c = crc32c_of(part)",
        tests=_UPLOAD,
    ),
    Mutant(
        name="records-above-the-high-watermark-are-served",
        file="agents/read/reader.py",
        text="if not fits or batch.next_offset > plan.end:",
        replacement="if not fits:",
        tests=(
            "tests/unit/agents/read/test_reader.py"
            "::test_a_merged_file_that_knows_more_than_the_high_watermark_gives_no_batch_above_it",
        ),
    ),
    Mutant(
        name="a-timestamp-is-looked-up-in-the-past",
        file="agents/handlers/list_offsets.py",
        text="is not None and log.end < watermarks.high_watermark:",
        replacement="is not None and log.end < 0:",
        tests=(f"{_LIST_OFFSETS}::test_a_timestamp_is_looked_up_by_an_agent_that_has_seen_all_that_is_committed",),
    ),
    Mutant(
        name="an-empty-log-has-its-place-twice",
        file="agents/handlers/list_offsets.py",
        text="if asked.timestamp == LATEST and watermarks.log_start_offset < watermarks.high_watermark:",
        replacement="if asked.timestamp == LATEST:",
        tests=(f"{_LIST_OFFSETS}::test_version_0_lists_the_starts_of_segments_newest_first",),
    ),
    Mutant(
        name="a-flagged-extent-is-checked-once-for-ever",
        file="agents/read/plan.py",
        text="            crcs_due=True,\n",
        replacement="            crcs_due=False,\n",
        tests=("tests/property/test_flagged_extents.py::test_a_batch_that_is_damaged_after_the_survey_is_not_served",),
    ),
    Mutant(
        name="a-rebuild-takes-batches-for-stored-that-are-missing",
        file="siltstone/ops/rebuild/producers.py",
        text='            and (row["last_sequences"][-1] + 1) % SEQUENCES == batch.first_sequence\n',
        replacement="",
        tests=_GAP,
    ),
    Mutant(
        name="a-rebuild-overlooks-sequences-that-are-missing",
        file="siltstone/ops/rebuild/producers.py",
        text='(row["last_sequences"][-1] + 1) % SEQUENCES == batch.first_sequence',
        replacement='(row["last_sequences"][-1] + 1) % SEQUENCES <= batch.first_sequence',
        tests=_GAP,
    ),
    Mutant(
        name="four-batches-of-a-file-are-known-in-memory",
        file="metadata/rules/producer_state.py",
        text="(*earlier, stored)[-PRODUCER_BATCHES_KEPT:]",
        replacement="(*earlier, stored)[-PRODUCER_BATCHES_KEPT + 1 :]",
        tests=(
            "tests/contract/test_borders.py::test_all_of_the_last_five_batches_of_one_file_are_known_as_duplicates",
        ),
    ),
    Mutant(
        name="a-deletion-is-not-on-disk",
        file="storage/local.py",
        text=(
            "        try:\n            _fsync_directory(directory)\n"
            "        except FileNotFoundError:\n            return  # another"
        ),
        replacement="        return  # another",
        tests=_DELETED,
    ),
    Mutant(
        name="a-directory-is-synced-before-the-deletion",
        file="storage/local.py",
        text="            try:\n                path.unlink()\n                parents.add(path.parent)\n",
        replacement="            try:\n                _fsync_directory(path.parent)\n                path.unlink()\n",
        tests=_DELETED,
    ),
    Mutant(
        name="the-halves-of-a-batch-change-places",
        file="siltstone/kafka/producing.py",
        text="queue.extendleft(reversed(left))",
        replacement="queue.extendleft(left)",
        tests=_IN_PARTS,
    ),
    Mutant(
        name="the-rest-of-a-batch-goes-last",
        file="siltstone/kafka/producing.py",
        text="queue.extendleft(reversed(left))",
        replacement="queue.extend(left)",
        tests=_IN_PARTS,
    ),
    Mutant(
        name="a-look-by-key-leaves-an-offset-between-two-windows",
        file="siltstone/kafka/key_lookup.py",
        text="end, window = begin, window * GROWTH",
        replacement="end, window = begin - 1, window * GROWTH",
        tests=_BY_KEY,
    ),
    Mutant(
        name="a-look-by-key-finds-the-oldest-of-a-batch",
        file="siltstone/kafka/key_lookup.py",
        text="for each in reversed(records) if",
        replacement="for each in records if",
        tests=_BY_KEY,
    ),
    Mutant(
        name="a-look-by-key-ends-with-the-first-windows",
        file="siltstone/kafka/key_lookup.py",
        text="    while end > start:",
        replacement="    while window <= FIRST_WINDOW * GROWTH and end > start:",
        tests=_BY_KEY,
    ),
    Mutant(
        name="a-first-limit-removes-nothing",
        file="siltstone/cli/topics/losses.py",
        text="return new >= 0 and (old < 0 or new < old)",
        replacement="return new >= 0 and new < old",
        tests=_SHORTER,
    ),
    Mutant(
        name="no-limit-is-the-shortest",
        file="siltstone/cli/topics/losses.py",
        text="return new >= 0 and (old < 0 or new < old)",
        replacement="return old < 0 or new < old",
        tests=_SHORTER,
    ),
    Mutant(
        name="the-same-limit-is-shorter",
        file="siltstone/cli/topics/losses.py",
        text="return new >= 0 and (old < 0 or new < old)",
        replacement="return new >= 0 and (old < 0 or new <= old)",
        tests=_SHORTER,
    ),
    Mutant(
        name="a-few-files-that-have-waited-are-leveled",
        file="compactor/planning/l0.py",
        text="is_enough = objects >= options.l0_files_min and (",
        replacement="is_enough = files > start and (",
        tests=(
            "tests/integration/compactor/test_compactor.py"
            "::test_eight_times_eight_files_lead_to_the_first_dedupe_by_the_compactors_own_clock",
        ),
    ),
)
