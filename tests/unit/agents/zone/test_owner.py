"""Who owns a file in a zone: every agent finds the same one, and few files move when agents come and go."""

from __future__ import annotations

import random
import uuid
from collections import Counter

from agents.zone.owner import members, owner
from metadata.contract.leases import AgentAddress, AgentInfo
from storage.keys import file_key


def agent(node_id: int, zone: str = "a", *, epoch: int = 1, zone_port: int = 7000) -> AgentInfo:
    address = AgentAddress(host="h", port=node_id, zone=zone, zone_port=zone_port)
    return AgentInfo(writer_id=node_id, epoch=epoch, address=address)


def key(level: int, writer_id: int = 99, epoch: int = 1, *, number: int = 0) -> str:
    file_uuid = uuid.UUID(bytes=random.Random(number).randbytes(6) + b"\x70\x00\x80" + bytes(7))
    return file_key(level=level, writer_id=writer_id, epoch=epoch, file_uuid=file_uuid, created_ms=1_700_000_000_000)


def test_an_l0_file_belongs_to_its_writer() -> None:
    agents = [agent(1), agent(2), agent(3)]
    for writer in (1, 2, 3):
        assert {owner(key(0, writer, number=each), agents) for each in range(20)} == {agents[writer - 1]}


def test_a_writer_that_started_again_lost_its_memory_so_its_files_are_shared_out() -> None:
    agents = [agent(1, epoch=2), agent(2), agent(3)]
    owners = {owner(key(0, 1, epoch=1, number=each), agents) for each in range(40)}
    assert owners == set(agents)


def test_merged_files_are_shared_out_evenly_and_stay_where_they_are() -> None:
    agents = [agent(each) for each in range(1, 5)]
    keys = [key(level, 1, number=each) for each in range(1_000) for level in (1, 2)]
    before = {each: owner(each, agents) for each in keys}
    counts = Counter(before.values())
    assert all(400 < count < 600 for count in counts.values()), counts
    # when one goes, only its files move, whatever the order of the list
    after = {each: owner(each, agents[:0:-1]) for each in keys}
    assert {before[each] for each in keys if before[each] != after[each]} == {agents[0]}


def test_nobody_serves_across_zones_nor_without_a_zone_or_a_port() -> None:
    agents = [agent(1, "a"), agent(2, "b"), agent(3, ""), agent(4, "a", zone_port=0), agent(5, "a")]
    assert [each.writer_id for each in members(agents, "a")] == [1, 5]
    assert [each.writer_id for each in members(agents, "b")] == [2]
    assert members(agents, "") == []
    assert owner(key(1), members(agents, "")) is None


def test_a_key_of_another_shape_has_an_owner_too() -> None:
    assert owner("l0/strange", [agent(1)]) == agent(1)
