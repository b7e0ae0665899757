"""The arguments of `commit_l0_v4` against the rules of `metadata/rules/producer_state.py`.

A file is usual exactly if the rules store every batch of it (for some state of its producers), its partitions ascend,
and the batches of each touch. From the arguments follow the index, the answers and the tails that the rules give.
"""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import event, given
from hypothesis import strategies as st

from metadata.contract.l0_commit import PRODUCER_BATCHES_KEPT, CommitL0, L0Batch
from metadata.contract.leases import WriterLease
from metadata.rules.packed_index import encode_index
from metadata.rules.producer_state import SEQUENCES, Producer, StoredBatch, judge, last_sequence
from metadata.rules.producer_tail import decode_tail, encode_tail
from metadata.rules.results import answers
from metadata.rules.stretches import stretches
from metadata.rules.usual_commit import UsualCommit, usual_commit
from tests.contract.metadata_worlds import new_key

Batches = Sequence[L0Batch]


@st.composite
def files(draw: st.DrawFn) -> list[L0Batch]:
    """Files that are usual, and files with one thing in them that is not."""
    batches: list[L0Batch] = []
    position = 0
    following: dict[tuple[int, int], int] = {}
    for partition_id in sorted(draw(st.sets(st.integers(1, 6), min_size=1, max_size=4))):
        for _ in range(draw(st.integers(1, 7))):
            records = draw(st.integers(1, 4))
            producer_id = draw(st.sampled_from([-1, 5, 6]))
            where = (partition_id, producer_id)
            if where not in following:
                following[where] = draw(st.sampled_from([0, 3, SEQUENCES - 2]))
            batch = L0Batch(
                partition_id=partition_id,
                position=position,
                length=draw(st.integers(1, 9)),
                record_count=records,
                min_timestamp_ms=draw(st.integers(-1, 5)),
                max_timestamp_ms=draw(st.integers(5, 9)),
                log_append_time_ms=draw(st.sampled_from([-1, -1, 77])),
            )
            if producer_id != -1:
                batch = batch._replace(producer_id=producer_id, producer_epoch=2, base_sequence=following[where])
                following[where] = (following[where] + records) % SEQUENCES
            position += batch.length
            batches.append(batch)
    return batches


def spoiled(batches: list[L0Batch], how: str, at: int) -> list[L0Batch]:
    one = batches[at % len(batches)]
    changes = {
        "masked": one._replace(masked_error=87),
        "impossible": one._replace(record_count=0),
        "a hole": one._replace(position=one.position + 1),
        "skips": one._replace(base_sequence=one.base_sequence + 1),
        "another epoch": one._replace(producer_epoch=one.producer_epoch + 1),
    }
    if how == "descends":
        return [*batches, one._replace(partition_id=0, position=batches[-1].position + batches[-1].length)]
    return [changes[how] if number == at % len(batches) else batch for number, batch in enumerate(batches)]


def request(batches: Batches) -> CommitL0:
    return CommitL0(
        lease=WriterLease(writer_id=1, epoch=0), seq=0, key=new_key(), size_bytes=0, crc32c=0, batches=batches
    )


def states_before(batches: Batches) -> dict[tuple[int, int], Producer]:
    """The producers of the file as they must be for its first batches to follow."""
    states: dict[tuple[int, int], Producer] = {}
    for batch in batches:
        where = (batch.partition_id, batch.producer_id)
        if batch.producer_id != -1 and where not in states:
            last = (batch.base_sequence - 1) % SEQUENCES
            kept = StoredBatch(first_sequence=last, last_sequence=last, base_offset=0, log_append_time_ms=-1)
            states[where] = Producer(epoch=batch.producer_epoch, batches=(kept,) * PRODUCER_BATCHES_KEPT)
    return states


def by_arguments(
    usual: UsualCommit, next_offsets: dict[int, int], states: dict[tuple[int, int], Producer]
) -> tuple[bytes, dict[tuple[int, int], Producer]]:
    """The index and the new states, as the function makes them from its arguments."""
    bases = [next_offsets[partition_id] for partition_id in usual.partition_ids]
    index = b"\x01"
    for number, (partition_id, records) in enumerate(zip(usual.partition_ids, usual.records, strict=True)):
        ends = (bases[number], bases[number] + records - 1)
        index += partition_id.to_bytes(4) + b"".join(each.to_bytes(8) for each in ends)
        index += usual.places[24 * number : 24 * number + 24]
    of_batches = list(
        zip(usual.batch_runs, usual.batch_offsets, usual.batch_records, usual.batch_sequences, strict=True)
    ) or [
        (number, *rest)
        for number, rest in enumerate(zip(usual.run_offsets, usual.run_records, usual.sequences, strict=True), 1)
    ]
    times_ms = usual.append_times_ms or [-1] * len(of_batches)
    after: dict[tuple[int, int], Producer] = {}
    for number, at in enumerate(usual.run_partitions, 1):
        where = (usual.partition_ids[at - 1], usual.producer_ids[number - 1])
        new = [
            StoredBatch(
                first_sequence=sequence,
                last_sequence=last_sequence(sequence, records),
                base_offset=bases[at - 1] + offset,
                log_append_time_ms=time_ms,
            )
            for (run, offset, records, sequence), time_ms in zip(of_batches, times_ms, strict=True)
            if run == number
        ]
        assert states[where].epoch == usual.producer_epochs[number - 1]
        kept = decode_tail(*encode_tail([*states[where].batches, *new][-PRODUCER_BATCHES_KEPT:]))
        after[where] = Producer(epoch=states[where].epoch, batches=kept)
    return index, after


@given(files())
def test_what_the_rules_store_as_a_whole_is_usual_and_its_arguments_say_all(batches: list[L0Batch]) -> None:
    next_offsets = {partition_id: 100 * partition_id for partition_id in range(7)}
    states = states_before(batches)
    judged = judge(batches, next_offsets=next_offsets, producers=states, state_may_be_absent=lambda _, __: False)
    assert not any(result.error or result.duplicate for result in judged.results)

    usual = usual_commit(request(batches))

    assert usual is not None
    index, after = by_arguments(usual, next_offsets, states)
    assert index == encode_index(stretches(batches, judged.results))
    assert after == judged.producers
    assert answers(b"", index, batches) == judged.results
    bases = b"\x03" + b"".join(next_offsets[partition_id].to_bytes(8) for partition_id in usual.partition_ids)
    assert answers(bases, b"\x01", batches) == judged.results
    assert usual.max_timestamp_ms == max(batch.max_timestamp_ms for batch in batches)
    event("several batches of a producer" if usual.batch_runs else "one batch of each producer")


@given(
    files(),
    st.sampled_from(["masked", "impossible", "a hole", "descends", "skips", "another epoch"]),
    st.integers(0, 30),
)
def test_a_file_with_one_thing_that_is_not_usual_is_not(batches: list[L0Batch], how: str, at: int) -> None:
    changed = spoiled(batches, how, at)
    one = changed[at % len(batches)]
    alone = [
        batch for batch in batches if (batch.partition_id, batch.producer_id) == (one.partition_id, one.producer_id)
    ]
    if how in ("skips", "another epoch") and (one.producer_id == -1 or len(alone) == 1):
        return  # the database alone can tell
    if how == "a hole" and batches[at % len(batches)].partition_id not in _neighbours(batches, at % len(batches)):
        return  # between blocks of partitions there may be bytes of nobody

    assert usual_commit(request(changed)) is None


def _neighbours(batches: Batches, at: int) -> set[int]:
    return {batches[number].partition_id for number in (at - 1, at + 1) if 0 <= number < len(batches)}
