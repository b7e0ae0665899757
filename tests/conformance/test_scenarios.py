"""Every client through every scenario: the table of `docs/kafka-coverage.md`, one cell at a time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from _pytest.mark import ParameterSet

from tests.conformance.clients import CLIENTS
from tests.conformance.cluster import Cluster
from tests.conformance.contract import Client
from tests.conformance.coverage import ABSENT, ANSWERED, DOCUMENT, render_coverage_markdown
from tests.conformance.scenarios import SCENARIOS, Scenario
from wire.api import APIS


def cells(*, always_there: bool) -> Sequence[ParameterSet]:
    return [
        pytest.param(
            client,
            scenario,
            id=f"{client.name}-{scenario.name}".replace(" ", "_"),
            marks=[pytest.mark.soak] if client.is_heavy else [],
        )
        for client in CLIENTS
        for scenario in SCENARIOS
        if client.always_there is always_there and scenario.name not in client.lacks
    ]


@pytest.mark.parametrize(("client", "scenario"), cells(always_there=True))
def test_a_client_passes(cluster: Cluster, client: Client, scenario: Scenario) -> None:
    scenario.run(client, cluster)


@pytest.mark.parametrize(("client", "scenario"), cells(always_there=False))
def test_a_client_that_is_at_hand_passes(cluster: Cluster, client: Client, scenario: Scenario) -> None:
    reason = client.absent()
    if reason:
        pytest.skip(reason)
    scenario.run(client, cluster)


def test_what_a_client_lacks_is_a_scenario() -> None:
    names = {scenario.name for scenario in SCENARIOS}
    assert all(client.lacks.keys() <= names for client in CLIENTS)


def test_the_document_says_what_is_tested() -> None:
    assert DOCUMENT.read_text() == render_coverage_markdown(), "run `python -m tests.conformance.coverage`"


def test_what_is_said_not_to_be_there_is_not_served_and_what_is_said_to_be_answered_is() -> None:
    served = {api.name for api in APIS.values()}
    absent, answered = (
        {name.strip() for _, names, _ in rows for name in names.split(",")} for rows in (ABSENT, ANSWERED)
    )
    assert not absent & served and answered <= served
