"""The metadata contract: idempotent producers, by Kafka's ProducerStateManager and our own rule on absent state."""

from __future__ import annotations

import asyncio
import itertools

from metadata.rules.invariants.all_levels import check_prod_1
from tests.contract.metadata_worlds import (
    DAY_MS,
    World,
    Writer,
    batch,
    duplicate,
    new_topic,
    offsets,
    refused,
    sent,
    stored,
)

OUT_OF_ORDER = 45
OLD_EPOCH = 47
INT32_MAX = 2**31 - 1


async def test_a_retry_in_a_later_file_of_another_agent_answers_with_the_first_offset(world: World) -> None:
    writer = await Writer.register(world.service)
    other = await Writer.register(await world.another(), port=9093)
    (one,) = (await new_topic(world.service)).partition_ids
    await writer.commit(batch(one, 7), sent(one, 0, 0, 3))

    again = await other.commit(batch(one), sent(one, 0, 0, 3), batch(one))

    assert list(again.results) == [stored(10), duplicate(7), stored(11)]
    assert offsets(again) == [(one, 10, 10), (one, 11, 11)]


async def test_a_retry_and_its_original_may_share_a_file(world: World) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids

    committed = await writer.commit(
        sent(one, 0, 0, 2), sent(one, 0, 0, 2), sent(one, 0, 2, 2), sent(one, 0, 0, 2), sent(one, 0, 4)
    )

    assert list(committed.results) == [stored(0), duplicate(0), stored(2), duplicate(0), stored(4)]
    assert offsets(committed) == [(one, 0, 1), (one, 2, 3), (one, 4, 4)]


async def test_after_a_gap_every_batch_is_refused_until_the_missing_one_arrives(world: World) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids

    committed = await writer.commit(
        sent(one, 0, 0, 2), sent(one, 0, 4, 2), sent(one, 0, 6, 2), sent(one, 0, 2, 2), sent(one, 0, 4, 2)
    )

    expected = [stored(0), refused(OUT_OF_ORDER), refused(OUT_OF_ORDER), stored(2), stored(4)]
    assert list(committed.results) == expected


async def test_after_a_masked_batch_the_rest_of_its_producer_is_refused_and_others_are_not(world: World) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids

    committed = await writer.commit(sent(one, 0, 0, masked_error=87), sent(one, 1, 0), sent(one, 0, 1))

    assert list(committed.results) == [refused(87), stored(0), refused(OUT_OF_ORDER)]


async def test_only_the_last_five_batches_are_known_as_duplicates(world: World) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    await writer.commit(*(sent(one, 0, n) for n in range(3)))
    await writer.commit(*(sent(one, 0, n) for n in range(3, 7)))

    again = await writer.commit(*(sent(one, 0, n) for n in range(7)))

    assert list(again.results) == [refused(OUT_OF_ORDER)] * 2 + [duplicate(n) for n in range(2, 7)]
    (state,) = await world.service.agents.producer_states()
    assert list(state.batches) == [(n, n, n) for n in range(2, 7)]


async def test_a_partial_overlap_is_no_duplicate(world: World) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    await writer.commit(sent(one, 0, 0, 4))

    again = await writer.commit(sent(one, 0, 0, 3), sent(one, 0, 2, 2))

    assert list(again.results) == [refused(OUT_OF_ORDER)] * 2


async def test_sequences_wrap_from_the_greatest_int_to_zero(world: World) -> None:
    service = await world.another(producer_id_expiration_ms=-1)
    writer = await Writer.register(service)
    (one,) = (await new_topic(service)).partition_ids
    await service.agents.allocate_producer_ids(1)

    inside = await writer.commit(sent(one, 0, INT32_MAX - 1, 4), sent(one, 0, 2))
    again = await writer.commit(sent(one, 0, INT32_MAX - 1, 4), sent(one, 0, 3, INT32_MAX - 3), sent(one, 0, INT32_MAX))
    past = await writer.commit(sent(one, 0, 0))

    assert list(inside.results) == [stored(0), stored(4)]
    assert list(again.results) == [duplicate(0), stored(5), stored(INT32_MAX + 2)]
    assert list(past.results) == [stored(INT32_MAX + 3)]
    assert check_prod_1(await service.agents.producer_states(), await service.agents.watermarks([one])) == []


async def test_an_older_epoch_is_refused_and_a_newer_one_starts_at_zero(world: World) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    await writer.commit(sent(one, 0, 0, epoch=3), sent(one, 0, 1, epoch=3))

    committed = await writer.commit(
        sent(one, 0, 2, epoch=2),
        sent(one, 0, 2, epoch=4),
        sent(one, 0, 0, epoch=4),
        sent(one, 0, 0, epoch=3),
        sent(one, 0, 1, epoch=4),
    )

    codes = [result.error for result in committed.results]
    assert codes == [OLD_EPOCH, OUT_OF_ORDER, 0, OLD_EPOCH, 0]
    (state,) = await world.service.agents.producer_states()
    assert (state.epoch, list(state.batches)) == (4, [(0, 0, 2), (1, 1, 3)])


async def test_a_batch_that_overtook_the_first_one_is_refused(world: World) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    young = (await world.service.agents.allocate_producer_ids(1))[0]

    overtaking = await writer.commit(sent(one, young, 5))
    in_order = await writer.commit(sent(one, young, 0, 5), sent(one, young, 5))

    assert list(overtaking.results) == [refused(OUT_OF_ORDER)]
    assert list(in_order.results) == [stored(0), stored(5)]


async def test_a_producer_older_than_a_new_topic_starts_at_zero(world: World) -> None:
    """InitProducerId, create the topic, pipeline two files, lose the first: the retry of the first must succeed."""
    writer = await Writer.register(world.service)
    elsewhere = await new_topic(world.service, "elsewhere")
    old = (await world.service.agents.allocate_producer_ids(5))[3]
    await world.service.agents.delete_topic(elsewhere.topic_id)
    (one,) = (await new_topic(world.service)).partition_ids

    overtaking = await writer.commit(sent(one, old, 1))
    retried = await writer.commit(sent(one, old, 0))
    following = await writer.commit(sent(one, old, 1))

    assert list(overtaking.results) == [refused(OUT_OF_ORDER)]
    assert (list(retried.results), list(following.results)) == ([stored(0)], [stored(1)])


async def test_a_producer_goes_on_when_its_topic_is_deleted_and_made_again(world: World) -> None:
    service = world.service
    writer = await Writer.register(service)
    first = await new_topic(service)
    running = (await service.agents.allocate_producer_ids(5))[3]
    await service.agents.delete_topic(first.topic_id)
    second = await new_topic(service)
    (one,) = second.partition_ids
    added = (await service.agents.create_partitions(second.topic_id, 3)).partition_ids[2]

    committed = await writer.commit(sent(one, running, 7), sent(one, running, 8), sent(added, running, 7))

    assert list(committed.results) == [stored(0), stored(1), stored(0)]


async def test_of_several_deletions_of_one_name_the_last_counts(world: World) -> None:
    service = world.service
    writer = await Writer.register(service)
    await service.agents.delete_topic((await new_topic(service)).topic_id)
    await asyncio.sleep(0.003)  # ids allocated in the millisecond of the deletion count as older
    running = (await service.agents.allocate_producer_ids(1))[0]
    second = await new_topic(service)
    before = await writer.commit(sent(second.partition_ids[0], running, 7))
    await service.agents.delete_topic(second.topic_id)
    (one,) = (await new_topic(service)).partition_ids

    after = await writer.commit(sent(one, running, 7))

    assert (list(before.results), list(after.results)) == ([refused(OUT_OF_ORDER)], [stored(0)])


async def test_a_producer_younger_than_the_deletion_starts_at_zero_on_the_topic_made_again(world: World) -> None:
    service = world.service
    writer = await Writer.register(service)
    await service.agents.delete_topic((await new_topic(service)).topic_id)
    await asyncio.sleep(0.003)  # ids allocated in the millisecond of the deletion count as older
    young = (await service.agents.allocate_producer_ids(1))[0]
    (one,) = (await new_topic(service)).partition_ids

    committed = await writer.commit(sent(one, young, 7), sent(one, young, 0))

    assert list(committed.results) == [refused(OUT_OF_ORDER), stored(0)]


async def test_a_deletion_is_remembered_until_all_older_producer_ids_have_expired(world: World) -> None:
    service = world.service
    writer = await Writer.register(service)
    old = (await service.agents.allocate_producer_ids(1))[0]
    for name in ("kept", "forgotten"):
        await service.agents.delete_topic((await new_topic(service, name)).topic_id)

    await world.forget_rows()
    (kept,) = (await new_topic(service, "kept")).partition_ids
    await world.forget_rows(producer_id_expiration_ms=-DAY_MS)
    (forgotten,) = (await new_topic(service, "forgotten")).partition_ids

    committed = await writer.commit(sent(kept, old, 7), sent(forgotten, old, 7), key="l0/a7/2999010100/x.silt")
    assert list(committed.results) == [stored(0), refused(OUT_OF_ORDER)]


async def test_a_producer_older_than_the_expiration_may_start_anywhere(world: World) -> None:
    service = await world.another(producer_id_expiration_ms=1)
    writer = await Writer.register(service)
    (one,) = (await new_topic(service)).partition_ids
    await asyncio.sleep(0.003)
    expired = (await service.agents.allocate_producer_ids(1))[0]
    await asyncio.sleep(0.005)

    assert list((await writer.commit(sent(one, expired, 5))).results) == [stored(0)]


async def test_a_producer_id_that_was_never_allocated_must_start_at_zero(world: World) -> None:
    service = await world.another(producer_id_expiration_ms=-1)
    writer = await Writer.register(service)
    await service.agents.allocate_producer_ids(3)
    (one,) = (await new_topic(service)).partition_ids

    committed = await writer.commit(sent(one, 3, 1), sent(one, 7, 0), sent(one, 2**40, 9))

    assert list(committed.results) == [refused(OUT_OF_ORDER), stored(0), refused(OUT_OF_ORDER)]


async def test_producer_ids_are_given_once_to_all_who_ask(world: World) -> None:
    other = await world.another()

    blocks = await asyncio.gather(
        *(service.agents.allocate_producer_ids(10) for service in [world.service, other] for _ in range(8))
    )

    given = list(itertools.chain(*blocks))
    assert sorted(given) == list(range(160))
