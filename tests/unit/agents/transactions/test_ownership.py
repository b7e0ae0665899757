"""Which agent coordinates a transactional id."""

from __future__ import annotations

from collections import Counter

from agents.groups.ownership import owner as group_owner
from agents.placement import named_weight
from agents.transactions.ownership import owner
from metadata.contract.leases import AgentAddress, AgentInfo

AGENTS = [
    AgentInfo(writer_id=node_id, epoch=1, address=AgentAddress(host="h", port=node_id, zone=""))
    for node_id in (1, 2, 3)
]


def test_ids_are_shared_out_evenly_and_not_as_groups_of_the_same_name() -> None:
    names = [f"tx-{number}" for number in range(900)]
    owners = [owner(name, AGENTS) for name in names]
    groups = [group_owner(name, AGENTS) for name in names]

    counts = Counter(each.writer_id for each in owners if each is not None)
    assert min(counts.values()) > 230, counts
    assert sum(1 for one, other in zip(owners, groups, strict=True) if one != other) > 300


def test_the_weight_is_of_the_id_and_the_node() -> None:
    assert named_weight("txn:t", 7) == 4179555354675979054
    assert owner("t", []) is None
    assert owner("\ud800", AGENTS) is not None
