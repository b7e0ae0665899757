"""Bugs at the borders of the metadata's contract. All of them lose or double acknowledged records in the end."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_BORDERS = "tests/contract/test_borders.py"
_SPARES = (f"{_BORDERS}::test_delete_records_spares_the_extent_of_the_first_record_that_stays",)
_PINS = (f"{_BORDERS}::test_of_two_pins_the_older_protects_what_died_between_them",)
_SEEN = (f"{_BORDERS}::test_every_commit_of_a_producer_shows_that_it_is_not_silent",)

BORDERS = (
    Mutant(
        name="delete-records-kills-a-live-extent-in-sql",
        file="metadata/postgres/log/delete_records.py",
        text="EXTENTS.c.last_offset < wanted",
        replacement="EXTENTS.c.last_offset <= wanted",
        tests=_SPARES,
    ),
    Mutant(
        name="delete-records-kills-a-live-extent-in-memory",
        file="metadata/memory/agents.py",
        text="if row.last_offset < wanted]",
        replacement="if row.last_offset <= wanted]",
        tests=_SPARES,
    ),
    Mutant(
        name="the-younger-pin-decides-in-sql",
        file="metadata/postgres/deletion.py",
        text="SELECT min(p.created_ms) FROM pins p",
        replacement="SELECT max(p.created_ms) FROM pins p",
        tests=_PINS,
    ),
    Mutant(
        name="the-younger-pin-decides-in-memory",
        file="metadata/memory/deletion.py",
        text="pinned_ms = min((pin.created_ms",
        replacement="pinned_ms = max((pin.created_ms",
        tests=_PINS,
    ),
    Mutant(
        name="an-active-producer-looks-silent-in-sql",
        file="metadata/migrations/versions/commit_l0_v1.sql",
        text="            last_seen_ms = excluded.last_seen_ms,\n",
        replacement="",
        tests=_SEEN,
    ),
    Mutant(
        name="an-active-producer-looks-silent-in-memory",
        file="metadata/memory/agents.py",
        text="db.producers_seen_ms.update(dict.fromkeys(judgement.producers, now_ms))",
        replacement="db.producers_seen_ms = dict.fromkeys(judgement.producers, now_ms) | db.producers_seen_ms",
        tests=_SEEN,
    ),
    Mutant(
        name="four-batches-of-a-file-are-known",
        file="metadata/migrations/versions/commit_l0_v1.sql",
        text="a.from_end <= 5",
        replacement="a.from_end <= 4",
        tests=(f"{_BORDERS}::test_all_of_the_last_five_batches_of_one_file_are_known_as_duplicates",),
    ),
)
