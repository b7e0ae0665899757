"""An agent does not start with a listener that it cannot serve as it was set."""

from __future__ import annotations

import re
from typing import Any

import pytest

from agents.listeners.serving import SERVED_PROTOCOLS, UnservedError, check_served
from runtime.settings.listeners import ListenerSettings
from runtime.settings.table import Settings

FILES = {"tls_cert_file": "c.pem", "tls_key_file": "k.pem"}
PROTOCOLS: dict[str, dict[str, Any]] = {"PLAINTEXT": {}, "SSL": FILES, "SASL_PLAINTEXT": {}, "SASL_SSL": FILES}


def settings_with(**members: Any) -> Settings:
    return Settings(listeners=(ListenerSettings(name="external", address="127.0.0.1:0", **members),))


def test_a_protocol_that_is_not_served_is_refused_by_name() -> None:
    for protocol, members in PROTOCOLS.items():
        settings = settings_with(protocol=protocol, **members)
        if protocol in SERVED_PROTOCOLS:
            check_served(settings)
            continue
        with pytest.raises(UnservedError, match=rf"listener\.external\.protocol is {protocol}") as refused:
            check_served(settings)
        assert all(re.search(rf"\b{each}\b", refused.value.remedy) for each in SERVED_PROTOCOLS)
