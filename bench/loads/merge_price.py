"""The price of one merge: the merge is run once more, on a store that counts, outside all measured times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from bench.loads.merge_inputs import LEASE
from bench.measures.price import asked_of, floor_merge, price_cells
from bench.servers.stack import parse_metrics
from bench.table import Cell
from compactor.merging.execute import MergeEngine
from compactor.planning.options import MergeMemory
from metadata.contract.jobs import ClaimedJob
from runtime.runtime import Runtime
from storage.objects import ObjectStore
from storage.wrappers.metered import Metered


async def merge_price(
    store: ObjectStore, claims: Sequence[ClaimedJob], memory: MergeMemory | None = None
) -> list[Cell]:
    """The cells of MERGE_PRICE_COLUMNS for these jobs together, for 1 GiB of their inputs."""
    runtime = Runtime()
    engine = MergeEngine(
        store=Metered(store, runtime.metrics, runtime.clock),
        runtime=runtime,
        lease=LEASE,
        memory=memory or MergeMemory(),
    )
    inputs: list[int] = []
    outputs: list[int] = []
    for claimed in claims:
        commit = await engine.run(claimed)
        outputs += [output.size_bytes for output in commit.outputs]
        inputs += _bytes_by_file(claimed)
        await store.delete_many([output.key for output in commit.outputs])
    asked = asked_of(parse_metrics(runtime.metrics.render().decode()), 0)
    return price_cells(asked, floor_merge(inputs, outputs), sum(inputs))[1:]


def _bytes_by_file(claimed: ClaimedJob) -> list[int]:
    """What each input file holds for the job."""
    found: Counter[str] = Counter()
    for extent in claimed.extents:
        found[extent.key] += extent.length
    return list(found.values())
