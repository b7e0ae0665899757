"""The ports of several agents with several listeners, started by one `siltstone dev`."""

from __future__ import annotations

import pytest

from runtime.errors import BadInputError
from runtime.settings.listeners import ListenerSettings, listeners_of
from runtime.settings.table import Settings
from siltstone.embedded.children import agent_settings, child_settings


def test_the_ports_of_each_listener_count_up_and_may_not_meet() -> None:
    def listeners(address: str, **members: str) -> tuple[ListenerSettings, ...]:
        default = ListenerSettings(name="default", connections_max_reauth_ms=5, protocol="SASL_PLAINTEXT")
        return default, ListenerSettings(name="external", address=address, **members)  # type: ignore[arg-type]

    settings = Settings(listeners=listeners("[::1]:9192", advertised="localhost:9192"), metrics_listen="127.0.0.1:0")
    each = agent_settings(settings, 2)
    told = [[(one.address, one.advertised) for one in listeners_of(settings)] for settings in each]
    assert told == [
        [("127.0.0.1:9092", ""), ("[::1]:9192", "localhost:9192")],
        [("127.0.0.1:9093", ""), ("[::1]:9193", "localhost:9193")],
    ]
    assert all(settings.listeners[0].connections_max_reauth_ms == 5 for settings in each)
    with pytest.raises(BadInputError, match=r"listen and listener\.external\.address: 3 agents .* both need 9094"):
        agent_settings(Settings(listeners=listeners("127.0.0.1:9094")), 3)
    with pytest.raises(BadInputError, match=r"listener\.external\.address: 2 agents need the ports from 65535 up"):
        agent_settings(Settings(listeners=listeners("127.0.0.1:65535")), 2)
    # without `default` the agents have the others alone, and a compactor listens nowhere that they do
    alone = Settings(listeners=(ListenerSettings(name="a", address="127.0.0.1:9092"),), metrics_listen="")
    first, second, compactor = child_settings(alone, 2, 1)
    assert [[one.address for one in listeners_of(each)] for each in (first, second)] == [
        ["127.0.0.1:9092"], ["127.0.0.1:9093"],
    ]  # fmt: skip
    assert [one.address for one in listeners_of(compactor)] == ["127.0.0.1:0"]
