"""One pass over a slice: windows of bytes in, decoded blocks of records out, with what is lost counted."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from spark_jobs.scan.blocking import BlockingStore
from spark_jobs.scan.contract import ScanOptions, Slice
from spark_jobs.scan.decode import Block, Decoder
from spark_jobs.scan.losses import Losses
from spark_jobs.scan.windows import windows


def blocks_of(
    store: BlockingStore,
    part: Slice,
    options: ScanOptions,
    *,
    known: Collection[tuple[int, int]] | None = None,
    losses: Losses | None = None,
) -> Iterator[Block]:
    """The blocks of one pass over the slice. `known`: see `Losses`. Raises as `read_slice`."""
    if losses is None:
        losses = Losses(options.topic, part.partition, fails=options.fail_on_data_loss, known=known)
    decoder = Decoder(part, losses)
    for window in windows(store, part, losses):
        yield from decoder.blocks(window)
    losses.check_complete()
