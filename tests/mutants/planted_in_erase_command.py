"""Bugs in `siltstone erase`: records that would stay, records that would go with them, and a proof that is none."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

REQUEST = "tests/unit/siltstone/ops/erasure/test_request.py"
TOMBSTONES = "tests/integration/kafka/test_erasure_tombstones.py"
SEARCH = "tests/unit/siltstone/ops/erasure/test_verify.py"
VERIFY = "tests/integration/siltstone/test_erase_verify.py"
REPORT = "tests/unit/siltstone/ops/erasure/test_report.py"

OFFSETS = "tests/unit/siltstone/kafka/test_offset_spec.py"
CLI = "tests/integration/siltstone/test_erase_cli.py"

ASKED = (
    Mutant(
        name="a-binary-key-loses-its-last-byte",
        file="siltstone/ops/erasure/request.py",
        text='is_text = all(each >= " " or each == "\\t" for each in key.decode())',
        replacement='is_text = key.decode() != ""',
        tests=(f"{REQUEST}::test_a_file_of_keys_that_are_no_text_is_refused",),
    ),
    Mutant(
        name="verify-passes-over-deleted-topics-in-silence",
        file="siltstone/ops/erasure/verify.py",
        text="row.length and row.topic_id not in topics for row",
        replacement="False for row",
        tests=(f"{CLI}::test_verify_says_that_it_did_not_search_a_deleted_topic_of_the_same_name",),
    ),
    Mutant(
        name="a-time-before-1970-is-the-end-of-the-log",
        file="siltstone/kafka/offset_spec.py",
        text="    if time_ms < 0:\n",
        replacement="    if time_ms < -1:\n",
        tests=(f"{OFFSETS}::test_no_time_before_1970_becomes_a_word_of_kafka",),
    ),
    Mutant(
        name="a-topic-that-was-made-again-is-erased-from",
        file="siltstone/cli/erase/request.py",
        text="    if topic.topic_id != asked.topic.topic_id:\n",
        replacement="    if False:\n",
        tests=(f"{CLI}::test_a_topic_that_changed_while_the_person_thought_is_left_alone",),
    ),
    Mutant(
        name="a-restored-value-is-not-compressed",
        file="siltstone/ops/erasure/tombstones.py",
        text="ProduceOptions(codec=Codec.ZSTD)",
        replacement="ProduceOptions()",
        tests=(f"{TOMBSTONES}::test_a_value_that_only_compression_lets_in_is_written_again",),
    ),
    Mutant(
        name="a-record-at-the-time-of-before-goes",
        file="siltstone/ops/erasure/request.py",
        text="last.offset >= limit",
        replacement="last.offset > limit",
        tests=(f"{REQUEST}::test_a_record_from_the_time_of_before_on_stays_and_gets_no_tombstone",),
    ),
    Mutant(
        name="a-tombstone-at-offset-0-is-forgotten",
        file="siltstone/ops/erasure/request.py",
        text="if mark.before_offset > 0 or mark.tombstone:",
        replacement="if mark.before_offset > 0:",
        tests=(f"{REQUEST}::test_a_tombstone_at_offset_0_goes_but_below_it_there_is_nothing",),
    ),
    Mutant(
        name="a-tombstone-hides-a-newer-value-for-ever",
        file="siltstone/ops/erasure/tombstones.py",
        text="                if self._restores and hidden is not None",
        replacement="                if not self._restores and hidden is not None",
        tests=(
            f"{TOMBSTONES}::test_a_value_that_a_tombstone_hid_is_written_again_and_so_is_the_one_that_its_copy_hid",
        ),
    ),
    Mutant(
        name="a-copy-counts-as-the-tombstone",
        file="siltstone/ops/erasure/tombstones.py",
        text="tombstones.setdefault(place, offset)",
        replacement="tombstones[place] = offset",
        tests=(
            f"{TOMBSTONES}::test_a_value_that_a_tombstone_hid_is_written_again_and_so_is_the_one_that_its_copy_hid",
        ),
    ),
    Mutant(
        name="a-producers-tombstone-is-undone-by-a-copy",
        file="siltstone/ops/erasure/tombstones.py",
        text="(written.value, hidden.value) != (None, None)",
        replacement="hidden.value is not None",
        tests=(f"{TOMBSTONES}::test_a_tombstone_of_the_producer_is_not_undone",),
    ),
    Mutant(
        name="an-aborted-record-is-the-newest",
        file="siltstone/ops/erasure/tombstones.py",
        text="    if record.is_aborted or (record.is_transactional and not is_known):",
        replacement="    if record.is_transactional and not is_known:",
        tests=(f"{TOMBSTONES}::test_an_aborted_record_is_no_newest_one_and_its_key_gets_a_tombstone_behind_it",),
    ),
    Mutant(
        name="a-record-of-an-open-transaction-is-the-newest",
        file="siltstone/ops/erasure/tombstones.py",
        text="    if record.is_aborted or (record.is_transactional and not is_known):",
        replacement="    if record.is_aborted:",
        tests=(f"{TOMBSTONES}::test_what_a_transaction_wrote_is_not_known_while_it_is_open",),
    ),
    Mutant(
        name="an-aborted-value-behind-a-tombstone-stays",
        file="siltstone/ops/erasure/request.py",
        text="elif last.is_tombstone and last.unseen_offset < last.offset:",
        replacement="elif last.is_tombstone:",
        tests=(f"{REQUEST}::test_a_key_with_a_record_that_decides_nothing_gets_a_tombstone_behind_it",),
    ),
    Mutant(
        name="a-value-of-an-open-transaction-comes-back",
        file="siltstone/ops/erasure/tombstones.py",
        text="            if not open_at or not self._restores:",
        replacement="            if open_at is not None:",
        tests=(f"{TOMBSTONES}::test_a_value_that_a_tombstone_hid_comes_back_if_its_transaction_committed_it",),
    ),
    Mutant(
        name="verify-passes-over-the-tombstone",
        file="siltstone/ops/erasure/verify.py",
        text="mark.before_offset + mark.tombstone for mark",
        replacement="mark.before_offset for mark",
        tests=(f"{SEARCH}::test_a_search_by_marks_counts_records_below_the_mark_and_the_tombstone_at_it",),
    ),
    Mutant(
        name="verify-believes-a-listing-that-is-old",
        file="siltstone/ops/erasure/verify.py",
        text="                is_gone = True\n",
        replacement="                is_gone = False\n",
        tests=(f"{VERIFY}::test_a_record_that_moves_to_a_new_object_during_the_search_is_found",),
    ),
    Mutant(
        name="verify-takes-damage-for-absence",
        file="siltstone/ops/erasure/verify.py",
        text="        return not self.found and not self.unread",
        replacement="        return not self.found",
        tests=(f"{VERIFY}::test_bytes_that_cannot_be_read_are_named_and_the_rest_is_searched",),
    ),
    Mutant(
        name="the-report-lets-everybody-guess-keys",
        file="siltstone/ops/erasure/report.py",
        text='hmac.digest(secret, key_hash, "sha256").hex()',
        replacement="key_hash.hex()",
        tests=(f"{REPORT}::test_the_secret_shows_that_a_key_was_erased_and_the_report_alone_does_not",),
    ),
)
