"""Listeners pass through each of the places that settings come from and stay what they were."""

from __future__ import annotations

import json
import string
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.settings.listeners import MECHANISMS, ListenerSettings, listener_values, listeners_of
from runtime.settings.loading import load_settings, settings_environment
from runtime.settings.table import Settings
from tests.fixtures.chance import examples

NAMES = st.text(string.ascii_lowercase + string.digits, min_size=1, max_size=8)
PORTS = st.integers(1, 60_000)
HOSTS = st.sampled_from(["127.0.0.1", "localhost", "[::1]"])
TOLD_HOSTS = st.sampled_from(["silt.example", "10.0.0.7", "[2001:db8::7]", "ecs"])
PATHS = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), min_size=1, max_size=12)


@st.composite
def one_listener(draw: st.DrawFn, name: str, port: int) -> ListenerSettings:
    members: dict[str, Any] = {"address": f"{draw(HOSTS)}:{draw(st.sampled_from([0, port]))}"}
    if draw(st.booleans()):
        members["advertised"] = f"{draw(TOLD_HOSTS)}:{draw(PORTS)}"
    protocol = members["protocol"] = draw(st.sampled_from(["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]))
    if protocol.endswith("SSL"):
        members |= {f"tls_{part}_file": draw(PATHS) for part in ("cert", "key", "ca", "crl")}
        members["tls_version_min"] = draw(st.sampled_from(["1.2", "1.3"]))
        members["tls_client_auth"] = draw(st.sampled_from(["none", "requested", "required"]))
        members["tls_principal_mapping_rules"] = draw(PATHS)
    if protocol.startswith("SASL"):
        chosen = draw(st.lists(st.sampled_from(MECHANISMS), min_size=1, unique=True))
        members["sasl_mechanisms"] = ",".join(chosen)
        members["connections_max_reauth_ms"] = draw(st.integers(0, 2**40))
        if "OAUTHBEARER" in chosen:
            members["sasl_oauthbearer_jwks_endpoint_url"] = f"https://{draw(PATHS)}"
            members |= {f"sasl_oauthbearer_expected_{each}": draw(PATHS) for each in ("issuer", "audience")}
    members["proxy_protocol_from"] = ",".join(draw(st.lists(st.sampled_from(["10.0.0.0/8", "2001:db8::/32"]))))
    return ListenerSettings(name=name, **members)


@st.composite
def all_listeners(draw: st.DrawFn) -> tuple[ListenerSettings, ...]:
    names = draw(st.lists(st.one_of(NAMES, st.just("default")), max_size=4, unique=True))
    return tuple(draw(one_listener(name, 10_000 + place)) for place, name in enumerate(sorted(names)))


@settings(max_examples=examples(300), deadline=None)
@given(all_listeners())
def test_listeners_survive_the_environment_the_command_line_and_both_forms_of_files(
    listeners: tuple[ListenerSettings, ...],
) -> None:
    expected = Settings(listeners=listeners)
    assert load_settings(None, settings_environment(expected), {}) == expected
    by_name = listener_values(listeners)
    assert load_settings(None, {}, {name: str(value) for name, value in by_name.items()}) == expected
    dotted = "".join(f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in by_name.items())
    tables = "".join(
        f"[listener.{each.name}]\n"
        + "".join(
            f"{name.removeprefix(f'listener.{each.name}.')} = {json.dumps(value, ensure_ascii=False)}\n"
            for name, value in listener_values([each]).items()
        )
        for each in listeners
    )
    assert from_file(dotted, {}) == from_file(tables, {}) == expected


@settings(max_examples=examples(200), deadline=None)
@given(all_listeners(), st.sampled_from(["", "127.0.0.1:9092"]))
def test_every_listener_that_is_set_is_there_once_with_an_address(
    listeners: tuple[ListenerSettings, ...], listen: str
) -> None:
    if any(each.name == "default" for each in listeners):
        listen = ""
    found = listeners_of(Settings(listeners=listeners, listen=listen))
    names = [each.name for each in found]
    expected = {each.name for each in listeners} | ({"default"} if listen or not listeners else set())
    assert len(names) == len(set(names)) and set(names) == expected
    assert all(each.address for each in found)
    assert "default" not in names[1:]


def from_file(text: str, overrides: Mapping[str, str]) -> Settings:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "siltstone.toml"
        path.write_text(text, encoding="utf-8")
        return load_settings(path, {}, overrides)
