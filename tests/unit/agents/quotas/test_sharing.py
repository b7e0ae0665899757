"""When an agent tells the others what is asked of it, and what it makes of their answers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

import pytest

from agents.quotas.sharing import QuotaSharing
from agents.quotas.throttle import MUTE_MS_MAX, REQUEST_MUTE_MS_MAX, Throttle
from metadata.contract.errors import MetadataUnavailableError
from metadata.contract.leases import BEAT_MS, LEASE_MS, WriterLease
from runtime.runtime import Runtime
from security.quotas.bucket import BURST_S
from security.quotas.precedence import Share
from security.quotas.sharing import REPORTED_MAX, number_of
from security.quotas.values import DEFAULT, QuotaEntity, QuotaKey
from tests.fixtures.waiting import until
from tests.unit.agents.quotas.test_throttle import FETCH, PRODUCE, Known, Quotas, World
from wire.messages.produce import ProduceRequest, ProduceResponse

SECRET = bytes(range(32))
LEASE = WriterLease(writer_id=7, epoch=3)
ANN: Quotas = {QuotaEntity(user="ann"): {QuotaKey.PRODUCER_BYTE_RATE: 1_000.0}}


def number(key: QuotaKey = QuotaKey.PRODUCER_BYTE_RATE, **share: str) -> int:
    return number_of(key, Share(**share or {"user": "ann"}), SECRET)


class Others:
    """The store, with what the other agents have reported."""

    def __init__(self) -> None:
        self.reports: Sequence[Mapping[int, float]] = [{}]
        self.told: list[Mapping[int, float]] = []
        self.away = False

    async def exchange_demands(self, lease: WriterLease, demands: Mapping[int, float]) -> Sequence[Mapping[int, float]]:
        assert lease == LEASE
        self.told.append(dict(demands))
        if self.away:
            raise MetadataUnavailableError("away")
        return self.reports


class SharingWorld(World):
    def __init__(self, quotas: Quotas, *, shares: bool = True) -> None:
        super().__init__(quotas)
        self.known = Known(quotas)
        runtime = Runtime(clock=self.clock, metrics=self.metrics)
        self.throttle = Throttle(self.known, runtime, shares=shares)
        self.others = Others()
        self.sharing = QuotaSharing(
            self.throttle, metadata=self.others, lease=lambda: LEASE, secret=lambda: SECRET, runtime=runtime
        )
        self.known.on_quotas.append(self.sharing.quotas_changed)

    async def beat(self) -> None:
        self.clock.advance_ms(BEAT_MS)
        await self.sharing.beat()

    def part(self, key: QuotaKey = QuotaKey.PRODUCER_BYTE_RATE, **share: str) -> float:
        return self.throttle.buckets[key].of(Share(**share or {"user": "ann"})).part


MakeWorld = Callable[..., SharingWorld]


@pytest.fixture
async def make_world() -> AsyncIterator[MakeWorld]:
    made: list[SharingWorld] = []

    def make(quotas: Quotas, *, shares: bool = True) -> SharingWorld:
        made.append(SharingWorld(quotas, shares=shares))
        return made[-1]

    yield make
    for world in made:
        await world.sharing.stop()


async def test_demands_are_told_by_number_in_parts_of_the_limit(make_world: MakeWorld) -> None:
    world = make_world({**ANN, QuotaEntity(client_id=DEFAULT): {QuotaKey.PRODUCER_BYTE_RATE: 4_000.0}})
    world.produce(world.client("ann"), 500)
    world.produce(world.client("bob"), 4_000, client_id="\ud800")
    await world.beat()
    assert world.others.told == [{number(): 0.125, number(client_id="\ud800"): 0.25}]
    world.produce(world.client("ann"), 20_000)  # more than it may: it wants all
    await world.beat()
    assert world.others.told[1] == {number(): 1.0, number(client_id="\ud800"): 0.125}


async def test_a_first_beat_that_comes_at_once_takes_no_little_use_for_a_high_rate(make_world: MakeWorld) -> None:
    world = make_world(ANN)
    world.produce(world.client(), 100)
    await world.sharing.beat()
    assert world.others.told == [{number(): 0.1}]  # as if in half a second, and half of it counts


async def test_what_is_used_after_a_time_without_quotas_is_not_spread_over_that_time(make_world: MakeWorld) -> None:
    world = make_world({})
    world.sharing.start()
    for _ in range(5):
        await asyncio.sleep(0)
    world.clock.advance_ms(3_600_000)
    world.known.set(ANN)
    world.produce(world.client(), 100)
    await until(lambda: world.others.told)
    assert world.others.told[0] == {number(): 0.1}


async def test_a_wait_for_two_quotas_becomes_no_longer_than_each_of_them_may_make_it(make_world: MakeWorld) -> None:
    # given a client that is far over its share of the loop, and over its bytes at this agent
    quotas = {QuotaKey.PRODUCER_BYTE_RATE: 1_000.0, QuotaKey.REQUEST_PERCENTAGE: 1.0}
    world = make_world({QuotaEntity(user="ann"): quotas})
    world.others.reports = [{}] * 3
    await world.beat()
    client = world.client()
    with world.asking(client, PRODUCE, 9, size=5_000) as context:
        world.throttle.handle(lambda *_: world.clock.advance_ms(1_000), None, context, ProduceRequest())
        world.throttle.encode(context, ProduceResponse())
    assert client.mute.left_ms() == MUTE_MS_MAX - 1_000
    # when it may have all bytes here
    world.clock.advance_ms(500)
    await world.sharing.beat()
    assert world.part() == 1.0
    # then it waits for the 2,125 bytes that it owes still, and no longer for the loop, for which nobody waits so long
    assert client.mute.left_ms() == 2_125 > REQUEST_MUTE_MS_MAX


async def test_a_client_that_owes_wants_all_until_it_is_even(make_world: MakeWorld) -> None:
    world = make_world({QuotaEntity(user="ann"): {QuotaKey.PRODUCER_ID_RATE: 1.0}})
    world.others.reports = []
    with world.asking(world.client(), 22, 4):
        while world.throttle.may_take_producer_id():
            pass
        world.throttle.may_take_producer_id()
    bucket = world.throttle.buckets[QuotaKey.PRODUCER_ID_RATE].of(Share(user="ann"))
    bucket.take(19, 1.0, world.clock.monotonic_ms(), float("inf"))  # twenty seconds' worth are owed
    for _ in range(9):
        await world.beat()
    assert [list(told.values()) for told in world.others.told] == [[1.0]] * 9
    await world.beat()
    assert list(world.others.told[-1].values()) == [0.5]


async def test_the_wait_is_shorter_when_the_part_has_grown_and_no_longer_when_it_shrinks(make_world: MakeWorld) -> None:
    world = make_world(ANN)
    world.others.reports = [{}, {}, {}]
    await world.beat()
    client, ended = world.client(), []
    client.mute.on_end = lambda: ended.append(1)
    # a quarter of the limit: 2,500 bytes at once, and 2,500 are owed
    assert world.produce(client, 5_000) == MUTE_MS_MAX
    assert world.part() == 0.25
    await world.beat()
    assert world.part() == 1.0
    # two seconds paid 500 at the old rate; the rest is paid at the whole one
    assert (client.mute.left_ms(), ended) == (2_000, [])
    world.others.reports = [{number(): 1.0}]
    world.clock.advance_ms(500)
    await world.sharing.beat()
    assert (world.part(), client.mute.left_ms()) == (0.5, 1_500)
    world.others.reports = []
    world.clock.advance_ms(1_499)
    await world.sharing.beat()
    assert client.mute.left_ms() == 1 and not ended
    world.clock.advance_ms(1_000)
    await world.sharing.beat()
    assert ended == [1] and not client.mute.on
    assert not world.throttle._muted


async def test_a_fetch_may_have_ten_seconds_worth_of_the_part(make_world: MakeWorld) -> None:
    world = make_world({QuotaEntity(user="ann"): {QuotaKey.CONSUMER_BYTE_RATE: 400.0}})
    world.others.reports = [{}] * 3
    await world.beat()
    with world.asking(world.client(), FETCH, 12):
        assert world.throttle.fetch_bytes_max() == 100 * BURST_S


async def test_every_key_is_shared_but_the_time_of_the_loop(make_world: MakeWorld) -> None:
    quotas = {key: 10.0 for key in QuotaKey if key is not QuotaKey.CONNECTION_CREATION_RATE}
    world = make_world(
        {QuotaEntity(user="ann"): quotas, QuotaEntity(ip=DEFAULT): {QuotaKey.CONNECTION_CREATION_RATE: 10.0}}
    )
    world.others.reports = [{}]
    await world.beat()
    for key in QuotaKey:
        parts = 1.0 if key is QuotaKey.REQUEST_PERCENTAGE else 0.5
        assert world.throttle.buckets[key].part == parts
    assert [world.throttle.admits("10.0.0.1") for _ in range(60)] == [True] * 51 + [False] * 9
    with world.asking(world.client(), 22, 4):
        assert sum(world.throttle.may_take_producer_id() for _ in range(60)) == 51
    await world.beat()
    address = number(QuotaKey.CONNECTION_CREATION_RATE, ip="10.0.0.1")
    assert world.others.told[-1] == {address: 1.0, number(QuotaKey.PRODUCER_ID_RATE): 1.0}


async def test_within_an_agents_scope_nothing_is_shared(make_world: MakeWorld) -> None:
    world = make_world(ANN, shares=False)
    world.sharing.start()
    world.produce(world.client(), 100_000)
    await asyncio.sleep(0)
    assert not world.others.told and not world.throttle.shares_now
    assert [*world.throttle.buckets[QuotaKey.PRODUCER_BYTE_RATE].beat(1.0, 0.0)] == [], "no demand is kept either"


async def test_nothing_is_called_while_no_quota_that_is_shared_is_set(make_world: MakeWorld) -> None:
    world = make_world({QuotaEntity(user="ann"): {QuotaKey.REQUEST_PERCENTAGE: 10.0}})
    world.sharing.start()
    for _ in range(20):
        await asyncio.sleep(0)
    assert not world.others.told and world.clock.monotonic_ms() == 0
    # the first quota is shared at once, and then with every beat
    world.known.set(ANN)
    await until(lambda: len(world.others.told) >= 3)
    assert world.clock.monotonic_ms() >= 2 * BEAT_MS
    world.known.set({})
    await until(lambda: not world.throttle.shares_now)
    for _ in range(20):
        await asyncio.sleep(0)
    told = len(world.others.told)
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(world.others.told) == told
    world.known.set({QuotaEntity(ip=DEFAULT): {QuotaKey.CONNECTION_CREATION_RATE: 1.0}})
    await until(lambda: len(world.others.told) > told)


async def test_parts_stand_when_a_call_fails_and_become_even_after_a_lease(
    make_world: MakeWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    world = make_world(ANN)
    world.produce(world.client(), 5_000)
    await world.beat()
    assert world.part() == 1.0
    world.others.away = True
    for _ in range(LEASE_MS // BEAT_MS):
        await world.beat()
        world.produce(world.client(), 1)
        assert world.part() == 1.0
    await world.beat()
    assert world.part() == 0.5
    world.others.away = False
    await world.beat()
    assert world.part() == 1.0
    world.others.away = True
    await world.beat()
    assert capsys.readouterr().err.count("quotas are not shared") == 2


async def test_an_agent_that_never_heard_of_others_measures_by_itself(make_world: MakeWorld) -> None:
    world = make_world(ANN)
    world.others.away = True
    world.produce(world.client(), 5_000)
    for _ in range(20):
        await world.beat()
    world.produce(world.client(), 5_000)
    assert world.part() == 1.0


async def test_the_report_is_bounded_and_a_share_beyond_it_keeps_what_it_asks_for(make_world: MakeWorld) -> None:
    world = make_world({QuotaEntity(client_id=DEFAULT): {QuotaKey.PRODUCER_BYTE_RATE: 1_000.0}})
    ids = [f"app-{at}" for at in range(REPORTED_MAX + 500)]
    random.shuffle(ids)
    for name in ids:
        world.produce(world.client(), 2_000 if int(name[4:]) < REPORTED_MAX else 1_000, client_id=name)
    await world.beat()
    (told,) = world.others.told
    assert told.keys() == {number(client_id=f"app-{at}") for at in range(REPORTED_MAX)}
    assert {world.part(client_id=name) for name in ids} == {1.0}


async def test_shares_at_rest_are_not_looked_at_again(make_world: MakeWorld) -> None:
    world = make_world({QuotaEntity(client_id=DEFAULT): {QuotaKey.PRODUCER_BYTE_RATE: 1_000.0}})
    for at in range(50):
        world.produce(world.client(), 2_000, client_id=f"app-{at}")
    for _ in range(25):
        await world.beat()
    assert world.others.told[-1] == {}
    assert not world.throttle.buckets[QuotaKey.PRODUCER_BYTE_RATE]._active
    # one that comes back begins with an even part
    world.others.reports = [{}] * 3
    await world.beat()
    world.produce(world.client(), 1, client_id="app-7")
    assert world.part(client_id="app-7") == 0.25
