"""The whole fleet is replaced by agents with other addresses, under clients with stock settings that know the load
balancer only. Each client is a process of its own; whatever its library shows it is a finding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from bench.loads.clients import create_topic
from bench.servers.fleet import Fleet, Replaced
from bench.steady.clients import AIOKAFKA, CLIENTS, KAFKA_PYTHON, LIBRDKAFKA, at_hand
from bench.steady.crowd import Crowd, Outcome
from bench.steady.programs.protocol import MEMBER, READER, WRITER

SETTINGS: Mapping[str, str] = {"drain.notice.ms": "15000"}
"""Short enough for a test; a client that works finds its way within seconds."""
PARTITIONS = 4
GO_ON_S = 30.0
STEPS = 40


SARAMAS_MEMBER, MOVED = "sarama-member", "not coordinated by this broker"
"""A heart-beat of Sarama that meets NOT_COORDINATOR is shown to its application, and the member joins again, with any
broker (`heartbeatLoop` of its consumer_group.go)."""
REPLACEMENTS = 2


def check(outcomes: Sequence[Outcome]) -> None:
    """Nothing is lost or doubled, nobody was shown an error, and everybody read to the end."""
    found = {
        outcome.client.name: (outcome.lost, outcome.doubled, outcome.unread, outcome.client.errors)
        for outcome in outcomes
    }
    if SARAMAS_MEMBER in found:
        *counts, errors = found[SARAMAS_MEMBER]
        assert counts == [0, 0, 0]
        assert len(errors) <= REPLACEMENTS
        assert all(MOVED in error for error in errors)
        del found[SARAMAS_MEMBER]
    assert found == {name: (0, 0, 0, []) for name in found}


def check_replaced(replaced: Replaced, fleet: Fleet) -> None:
    assert set(replaced.exit_codes) == {0}, fleet.complaints()


def test_the_whole_fleet_is_replaced_and_every_client_goes_on(tmp_path: Path) -> None:
    roles = {each.name: (WRITER, READER) for each in (AIOKAFKA, KAFKA_PYTHON)}
    with Fleet(agents=2, settings=SETTINGS) as fleet:
        create_topic(fleet.bootstrap, "t", PARTITIONS)
        kinds = (LIBRDKAFKA, AIOKAFKA, KAFKA_PYTHON)
        with Crowd(
            kinds, bootstrap=fleet.bootstrap, topic="t", partitions=PARTITIONS, folder=tmp_path, roles=roles
        ) as crowd:
            # when all agents are replaced at once
            check_replaced(fleet.replace_all(), fleet)
            # then everybody goes on, with all records
            crowd.until_steps(STEPS, GO_ON_S)
            check(crowd.finish())
        assert fleet.complaints() == []


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_the_whole_fleet_is_replaced_twice_over_and_no_client_of_any_kind_notices(tmp_path: Path) -> None:
    with Fleet(agents=3, settings=SETTINGS) as fleet:
        create_topic(fleet.bootstrap, "t", PARTITIONS)
        with Crowd(
            at_hand(CLIENTS), bootstrap=fleet.bootstrap, topic="t", partitions=PARTITIONS, folder=tmp_path
        ) as crowd:
            for _ in range(REPLACEMENTS):
                check_replaced(fleet.replace_all(), fleet)
                crowd.until_steps(STEPS, GO_ON_S)
            members = {client.name: client.rebalances for client in crowd.clients if client.role == MEMBER}
            check(crowd.finish())
        # a group whose coordinator goes keeps its members and its generation: the only rebalance is the start
        assert members.pop(SARAMAS_MEMBER, 1) <= 1 + REPLACEMENTS
        assert members == dict.fromkeys(members, 1)
        assert fleet.complaints() == []
