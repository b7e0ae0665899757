"""Files in which one thing is not usual, and all else is: that one thing alone gets another answer."""

from __future__ import annotations

import pytest

from metadata.contract.l0_commit import BatchResult, L0Batch
from metadata.contract.leases import WriterFencedError
from tests.contract.metadata_worlds import World, Writer, batch, duplicate, new_topic, refused, sent, stored

PRODUCER, OTHER = 0, 1
OUT_OF_ORDER, OLD_EPOCH, UNKNOWN = 45, 47, 3


@pytest.mark.parametrize(
    ("odd", "answer"),
    [
        (sent(2, PRODUCER, 10, epoch=4), refused(OLD_EPOCH)),
        (sent(2, PRODUCER, 10, epoch=6), refused(OUT_OF_ORDER)),
        (sent(2, PRODUCER, 0, epoch=6), stored(10)),
        (sent(2, PRODUCER, 11, epoch=5), refused(OUT_OF_ORDER)),
        (sent(2, PRODUCER, 0, 10, epoch=5), duplicate(0)),
        (sent(2, OTHER, 1), refused(OUT_OF_ORDER)),
        (batch(3), refused(UNKNOWN)),
        (batch(2, masked_error=87), refused(87)),
        (batch(2, 0), refused(-1)),
    ],
    ids=["older epoch", "newer epoch", "bumped", "gap", "duplicate", "new", "no partition", "masked", "impossible"],
)
async def test_what_is_not_usual_is_judged_alone(world: World, odd: L0Batch, answer: BatchResult) -> None:
    service = world.service
    writer = await Writer.register(service)
    one, two = (await new_topic(service, partitions=2)).partition_ids
    await service.agents.allocate_producer_ids(2)
    assert (one, two) == (1, 2)
    await writer.commit(sent(one, PRODUCER, 0, 10, epoch=5), sent(two, PRODUCER, 0, 10, epoch=5))

    committed = await writer.commit(sent(one, PRODUCER, 10, epoch=5), odd)

    assert list(committed.results) == [stored(10), answer]
    marks = await service.agents.watermarks([one, two])
    is_stored = answer == stored(10)
    assert [marks[one].high_watermark, marks[two].high_watermark] == [11, 11 if is_stored else 10]
    # and the producers go on where the answers say
    epoch = 6 if is_stored else 5
    following = 1 if is_stored else 10
    next_ones = (sent(one, PRODUCER, 11, epoch=5), sent(two, PRODUCER, following, epoch=epoch))
    assert list((await writer.commit(*next_ones)).results) == [stored(11), stored(11 if is_stored else 10)]


async def test_a_writer_of_an_older_epoch_is_fenced_whatever_its_seq(world: World) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    await Writer.register(world.service, instead_of=writer.lease)
    writer.seq = 1_000

    with pytest.raises(WriterFencedError):
        await writer.commit(batch(one))

    assert (await world.service.agents.watermarks([one]))[one].high_watermark == 0
