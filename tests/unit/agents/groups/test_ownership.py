"""Which agent coordinates a group."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

from agents.groups.ownership import owner, weight
from metadata.contract.leases import AgentAddress, AgentInfo


def agents(*node_ids: int) -> list[AgentInfo]:
    return [
        AgentInfo(writer_id=node_id, epoch=1, address=AgentAddress(host="h", port=node_id, zone=f"z{node_id % 2}"))
        for node_id in node_ids
    ]


GROUPS = [f"group-{number}" for number in range(1_000)]


def owners(*node_ids: int) -> dict[str, int]:
    found = {group_id: owner(group_id, agents(*node_ids)) for group_id in GROUPS}
    return {group_id: agent.writer_id for group_id, agent in found.items() if agent is not None}


def test_nobody_owns_a_group_while_nobody_is_alive() -> None:
    assert owner("g", []) is None


def test_the_order_of_the_list_does_not_matter() -> None:
    assert owners(1, 2, 3) == owners(3, 1, 2)


def test_groups_are_shared_out_about_evenly() -> None:
    shares = Counter(owners(1, 2, 3, 4).values())
    assert set(shares) == {1, 2, 3, 4} and min(shares.values()) > 180, shares


def test_an_agent_that_goes_moves_its_own_groups_only() -> None:
    before, after = owners(1, 2, 3), owners(1, 2)
    assert {group_id for group_id in GROUPS if before[group_id] != after[group_id]} == {
        group_id for group_id in GROUPS if before[group_id] == 3
    }


def test_the_weight_is_the_same_in_every_process_and_for_any_text() -> None:
    assert weight("g", 7) == 4890867476211558759
    code = "from agents.groups.ownership import weight; print(weight('g', 7))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert int(told) == weight("g", 7)
    assert weight("\ud800\x00", 1) != weight("\ud801\x00", 1)
