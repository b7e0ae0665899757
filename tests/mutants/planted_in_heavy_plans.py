"""Bugs in plans of heavy merges, in parts of extents, and in the shuffle of keys."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_CUT = "tests/unit/compactor/heavy/test_heavy_cut.py"
_DIVIDED = "tests/unit/compactor/heavy/test_heavy_divided.py"
_FRAMES = "tests/unit/compactor/heavy/test_frames.py"
_PARTS = "tests/unit/compactor/heavy/test_heavy_parts.py"
_KEYS = "tests/unit/spark_jobs/keys/test_columns.py"

HEAVY_PLANS = (
    Mutant(
        name="frames-are-believed-without-their-digest",
        file="compactor/heavy/plan/frames.py",
        text="if len(stored) != self.length or hashlib.sha256(stored).digest()[:_DIGEST_BYTES] != self.digest:",
        replacement="if len(stored) != self.length:",
        tests=(f"{_FRAMES}::test_any_changed_byte_is_noticed",),
    ),
    Mutant(
        name="plans-are-believed-under-any-key",
        file="compactor/heavy/plan/codec.py",
        text="if fingerprint is not None and directory.fingerprint != fingerprint:",
        replacement="if fingerprint is not None and not directory.fingerprint:",
        tests=(f"{_CUT}::test_a_plan_of_another_key_or_with_other_bytes_is_refused",),
    ),
    Mutant(
        name="a-true-is-a-number-of-a-plan",
        file="compactor/heavy/plan/codec.py",
        text="wrong = set(map(type, column)).difference(allowed)",
        replacement="wrong = {type(each) for each in column if not isinstance(each, allowed)}",
        tests=(f"{_CUT}::test_a_plan_that_is_not_for_us_is_refused_and_says_why",),
    ),
    Mutant(
        name="parts-end-in-the-next-one",
        file="compactor/heavy/plan/parts.py",
        text="last_offset=blocks[end].base_offset - 1 if end < len(blocks)",
        replacement="last_offset=blocks[end].base_offset if end < len(blocks)",
        tests=(f"{_PARTS}::test_parts_tile_bytes_and_offsets_of_their_extent",),
    ),
    Mutant(
        name="parts-need-not-join-to-their-extent",
        file="compactor/heavy/combine.py",
        text="    return joined == extent.crc32c\n",
        replacement="    return True\n",
        tests=(f"{_DIVIDED}::test_a_damaged_extent_is_kept_whole_by_a_second_plan",),
    ),
    Mutant(
        name="two-keys-with-three-equal-words-are-one",
        file="spark_jobs/keys/columns.py",
        text="return differs | load_u64_le(one + 24) ^ load_u64_le(other + 24) == np.uint64(0)",
        replacement="return differs == np.uint64(0)",
        tests=(f"{_KEYS}::test_keys_that_differ_in_any_one_bit_are_two_keys",),
    ),
    Mutant(
        name="the-last-row-of-a-key-wins-whatever-its-offset",
        file="spark_jobs/keys/columns.py",
        text="if load_i64_le(address + _OFFSET_AT) > load_i64_le(other + _OFFSET_AT):",
        replacement="if load_i64_le(address + _OFFSET_AT) != load_i64_le(other + _OFFSET_AT):",
        tests=(f"{_KEYS}::test_the_last_record_of_each_key_is_found_in_buckets_as_in_a_dict",),
    ),
    Mutant(
        name="slices-need-not-have-all-their-rows-at-the-reducers",
        file="compactor/heavy/slices.py",
        text="if records != each.entered:",
        replacement="if records > each.entered:",
        tests=(
            "tests/unit/compactor/heavy/test_slices.py::test_a_slice_of_which_fewer_records_were_counted_than_had_keys_is_refused_whatever_others_counted",
        ),
    ),
    Mutant(
        name="read-latest-believes-two-reads-that-differ",
        file="spark_jobs/latest/passes.py",
        text="if (rows, met) != (surviving.rows, len(surviving.offsets)):",
        replacement="if met < 0:",
        tests=(
            "tests/unit/spark_jobs/latest/test_passes.py::test_a_record_that_only_one_pass_could_read_ends_the_read",
        ),
    ),
)
