"""Records that wait in L0 past `max.compaction.lag.ms`, as `topics explain` and `record diagnose` tell of them."""

from __future__ import annotations

from runtime.settings.table import Settings
from siltstone.cli.options.system_options import SystemOptions
from siltstone.cli.topics.explain import explained
from siltstone.ops.hint_options import NO_HINT_OPTIONS
from siltstone.ops.record_trace import diagnose
from tests.fixtures.compacted_systems import System
from tests.fixtures.waiting import until

HOUR_MS = 3_600_000


async def test_a_record_that_is_stuck_in_l0_past_its_lag_is_told_by_both(system: System) -> None:
    # given a cluster without a compactor, with records in topics with a lag of 10 ms, of an hour, and without one
    for name, lag in (("short", "10"), ("long", str(HOUR_MS)), ("none", None)):
        configs = {"cleanup.policy": "compact"} | ({} if lag is None else {"max.compaction.lag.ms": lag})
        await system.client.create_topic(name, partitions=1, configs=configs)
        await system.write(name, 1)
    given = SystemOptions(data=None, metadata_url="", object_store_url="", settings=Settings())

    async def codes(name: str) -> set[str]:
        return {each.cause.code for each in (await explained(system.metadata, None, name, given)).reasons}

    async def why(name: str) -> str:
        return (await diagnose(system.metadata, system.store, name, 0, 0, NO_HINT_OPTIONS)).why

    # then, once the lag has passed, both name it
    async def is_named() -> bool:
        return "past max lag" in await codes("short")

    await until(is_named)
    assert "max.compaction.lag.ms (0s) has passed" in await why("short")
    # and of the others nothing of the kind is said
    assert "max lag" in await codes("long") and "past max lag" not in await codes("long")
    assert not {"max lag", "past max lag"} & await codes("none")
    assert (await why("long"), await why("none")) == ("", "")
