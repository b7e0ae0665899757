"""The reads of the metadata that commands of `siltstone transactions` share."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from metadata.contract.operators import HeldView
from metadata.contract.store import MetadataStore
from metadata.transactions.contract import TransactionInfo
from runtime.errors import BadInputError
from siltstone.ops.compaction.compact_now import find_topic
from siltstone.ops.hint_options import HintOptions

PAGE_IDS = 10_000


class UnknownTransactionalIdError(BadInputError):
    pass


async def all_ids(metadata: MetadataStore) -> Sequence[TransactionInfo]:
    """By id, without their partitions."""
    found: list[TransactionInfo] = []
    after: str | None = None
    while True:
        page = await metadata.transactions.list_transactions(after=after, limit=PAGE_IDS)
        found += page
        if len(page) < PAGE_IDS:
            return found
        after = page[-1].transactional_id


async def ids_on(metadata: MetadataStore, topic: str, *, hints: HintOptions) -> Sequence[TransactionInfo]:
    """Those whose ongoing transaction is on the topic, by id. Raises NoSuchTopicError."""
    ids = {*(await find_topic(metadata, topic, hints=hints)).partition_ids}
    return [each for each in (await metadata.operators.held_view()).infos if not ids.isdisjoint(each.partitions)]


async def named_ids(
    metadata: MetadataStore, names: Sequence[str], *, places: str
) -> tuple[HeldView, Sequence[TransactionInfo]]:
    """One instant, and the ids in the order of `names`. `places`: the options for a hint.

    Raises UnknownTransactionalIdError.
    """
    view = await metadata.operators.held_view(names)
    found = {each.transactional_id: each for each in view.infos}
    for name in names:
        if name not in found:
            there = [each.transactional_id for each in await all_ids(metadata)]
            raise UnknownTransactionalIdError(
                f"there is no transactional id {name!r}: no producer used it, or not for so long that it expired",
                remedy=nearest_id(name, there, places),
            )
    return view, [found[name] for name in names]


def nearest_id(name: str, names: Sequence[str], options: str) -> str:
    by_lower = {each.lower(): each for each in names}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1)
    return f"did you mean {by_lower[near[0]]!r}?" if near else f"`siltstone transactions list{options}` shows the ids"
