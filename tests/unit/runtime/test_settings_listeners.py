"""The family `listener.NAME.*`: its three spellings, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runtime.settings.document import render_settings_markdown
from runtime.settings.listeners import (
    ListenerSettings,
    endpoint_of,
    listeners_of,
    member_declarations,
)
from runtime.settings.loading import load_settings, settings_environment
from runtime.settings.table import Settings
from runtime.settings.values import SettingsError

TOKENS = {
    "sasl_oauthbearer_jwks_endpoint_url": "https://issuer/keys",
    "sasl_oauthbearer_expected_issuer": "https://issuer",
    "sasl_oauthbearer_expected_audience": "siltstone",
}
FILES = {"tls_cert_file": "c.pem", "tls_key_file": "k.pem"}


def listener(name: str = "external", **members: Any) -> ListenerSettings:
    return ListenerSettings(name=name, **{"address": "127.0.0.1:9093", **members})


def refusal(*listeners: ListenerSettings, **settings: Any) -> str:
    """The complaint about these settings, and the remedy."""
    with pytest.raises(SettingsError) as refused:
        Settings(listeners=listeners, **settings)
    return str(refused.value)


def test_a_listener_has_one_name_in_files_tables_the_environment_and_on_the_command_line(tmp_path: Path) -> None:
    dotted, table = tmp_path / "dotted.toml", tmp_path / "table.toml"
    dotted.write_text('listener.external.address = "127.0.0.1:9093"\nlistener.external.tls.version.min = "1.2"\n')
    table.write_text('[listener.external]\naddress = "127.0.0.1:9093"\ntls = { version.min = "1.2" }\n')
    environ = {"SILTSTONE_LISTENER_EXTERNAL_ADDRESS": "127.0.0.1:9093"}
    expected = Settings(listeners=(listener(),))
    assert load_settings(dotted, {}, {}) == load_settings(table, {}, {}) == expected
    assert load_settings(None, environ, {}) == expected
    assert load_settings(None, {}, {"listener.external.address": "127.0.0.1:9093"}) == expected
    # the command line wins over the environment, and that over the file, member by member
    given = load_settings(
        table,
        {"SILTSTONE_LISTENER_EXTERNAL_ADVERTISED": "a:1", "SILTSTONE_LISTENER_EXTERNAL_ADDRESS": "127.0.0.1:1"},
        {"listener.external.address": "127.0.0.1:2"},
    )
    assert given.listeners == (listener(address="127.0.0.1:2", advertised="a:1"),)


def test_values_are_typed_and_checked_as_those_of_every_setting(tmp_path: Path) -> None:
    file = tmp_path / "siltstone.toml"
    file.write_text('[listener.a]\naddress = "127.0.0.1:1"\nconnections.max.reauth.ms = "soon"\n')
    with pytest.raises(SettingsError, match=r"listener\.a\.connections\.max\.reauth\.ms must be a whole number"):
        load_settings(file, {}, {})
    for member, value, said in (
        ("protocol", "SASL_TLS", "must be one of PLAINTEXT, SSL"),
        ("tls.version.min", "1.1", "must be one of 1.2, 1.3"),
        ("tls.client.auth", "need", "must be one of none, requested, required"),
        ("connections.max.reauth.ms", "-1", "must be at least 0 ms"),
        ("address", "9093", "must be HOST:PORT"),
        ("advertised", "kafka.example.com", "must be HOST:PORT"),
        ("proxy.protocol.from", "10.0.0.0/8,lb", "must be networks separated by commas"),
    ):
        overrides = {"listener.a.address": "127.0.0.1:1", f"listener.a.{member}": value}
        with pytest.raises(SettingsError) as refused:
            load_settings(None, {}, overrides)
        assert str(refused.value).startswith(f"listener.a.{member} ") and said in str(refused.value)


@pytest.mark.parametrize(
    ("environ", "overrides", "said"),
    [
        ({}, {"listener.ext.adress": "x"}, "did you mean 'listener.ext.address'?"),
        ({}, {"listener.ext.sasl.mechanism": "x"}, "did you mean 'listener.ext.sasl.mechanisms'?"),
        ({"SILTSTONE_LISTENER_EXT_ADRESS": "x"}, {}, "did you mean 'SILTSTONE_LISTENER_EXT_ADDRESS'?"),
        ({"SILTSTONE_LISTENER_MY_NET_ADDRESS": "x"}, {}, "there is no setting 'SILTSTONE_LISTENER_MY_NET_ADDRESS'"),
        ({"SILTSTONE_LISTENER_ext_ADDRESS": "x"}, {}, "there is no setting 'SILTSTONE_LISTENER_ext_ADDRESS'"),
        ({"SILTSTONE_LISTENER_EXT": "x"}, {}, "there is no setting 'SILTSTONE_LISTENER_EXT'"),
        ({"SILTSTONE_LISTENER__ADDRESS": "x"}, {}, "a listener cannot be named ''"),
        ({}, {"listener.my-net.address": "x"}, "a listener cannot be named 'my-net'"),
        ({}, {"listener.EXT.address": "x"}, "a listener cannot be named 'EXT'"),
        ({}, {"listener.address": "x"}, "there is no setting 'listener.address'"),
        ({}, {"listener.ext": "x"}, "there is no setting 'listener.ext'"),
    ],
)
def test_a_misspelt_member_or_name_is_refused(environ: dict[str, str], overrides: dict[str, str], said: str) -> None:
    with pytest.raises(SettingsError) as refused:
        load_settings(None, environ, overrides)
    assert said in str(refused.value)


def test_the_short_forms_mean_the_listener_default() -> None:
    assert [each.address for each in listeners_of(Settings())] == ["127.0.0.1:9092"]
    (short,) = listeners_of(Settings(listen="127.0.0.1:1", advertised_host="silt.example"))
    assert (short.name, short.address, short.advertised) == ("default", "127.0.0.1:1", "silt.example:0")
    plain = listener("default", address="", sasl_mechanisms="PLAIN", protocol="SASL_PLAINTEXT")
    both = Settings(listen="127.0.0.1:1", listeners=(plain,))
    assert [(each.address, each.mechanisms) for each in listeners_of(both)] == [("127.0.0.1:1", ("PLAIN",))]
    same = Settings(listen="127.0.0.1:1", listeners=(listener("default", address="127.0.0.1:1"),))
    assert [each.address for each in listeners_of(same)] == ["127.0.0.1:1"]


def test_default_comes_first_then_the_others_by_name_and_is_there_only_if_it_is_set() -> None:
    others = listener("b"), listener("a", address="127.0.0.1:9094")
    assert [each.name for each in listeners_of(Settings(listeners=others))] == ["a", "b"]
    with_default = Settings(listeners=others, listen="127.0.0.1:0")
    assert [each.name for each in listeners_of(with_default)] == ["default", "a", "b"]


def test_a_short_form_against_what_it_stands_for_is_refused() -> None:
    default = listener("default", advertised="silt.example:1")
    said = refusal(default, listen="127.0.0.1:9092")
    assert "listen is 127.0.0.1:9092 and listener.default.address is 127.0.0.1:9093" in said
    said = refusal(default, advertised_host="other.example")
    assert "advertised.host is other.example and listener.default.advertised is silt.example:1" in said
    Settings(listeners=(default,), advertised_host="silt.example")
    said = refusal(listener(), advertised_host="silt.example")
    assert "the listener `default`, whose host it is, is not set" in said and "listener.external.advertised" in said


def test_what_clients_are_told_is_the_advertised_endpoint_with_the_port_that_was_bound_if_it_names_none() -> None:
    bound = ("127.0.0.1", 5555)
    assert endpoint_of(listener(), bound) == bound
    assert endpoint_of(listener(advertised="[2001:db8::1]:0"), bound) == ("2001:db8::1", 5555)
    assert endpoint_of(listener(advertised="a.example:443"), bound) == ("a.example", 443)


def test_an_address_for_other_machines_wants_authentication_and_encryption_or_insecure() -> None:
    far = "10.0.0.1:9093"
    said = refusal(listener(address=far))
    assert "listener.external.address 10.0.0.1:9093 can be reached from other machines, and clients are not" in said
    assert "listener.external.protocol to SASL_SSL" in said and "--insecure" in said
    said = refusal(listener(address=far, protocol="SSL", **FILES))
    assert "clients are not authenticated" in said and "listener.external.tls.client.auth to required" in said
    said = refusal(listener(address=far, protocol="SASL_PLAINTEXT"))
    assert "nothing that they send is encrypted" in said
    asked = {**FILES, "tls_ca_file": "ca.pem", "tls_client_auth": "requested"}
    assert "clients are not authenticated" in refusal(listener(address=far, protocol="SSL", **asked))
    Settings(listeners=(listener(address=far, protocol="SASL_SSL", **FILES),))
    Settings(listeners=(listener(address=far, protocol="SSL", **{**asked, "tls_client_auth": "required"}),))
    for protocol, members in (("PLAINTEXT", {}), ("SASL_PLAINTEXT", {}), ("SSL", FILES)):
        Settings(listeners=(listener(address=far, protocol=protocol, **members),), insecure=True)


@pytest.mark.parametrize("mechanisms", ["PLAIN", "OAUTHBEARER", "SCRAM-SHA-512, PLAIN"])
def test_mechanisms_that_send_the_secret_itself_stay_on_loopback_without_tls(mechanisms: str) -> None:
    tokens = TOKENS if mechanisms == "OAUTHBEARER" else {}
    plain = {"protocol": "SASL_PLAINTEXT", "sasl_mechanisms": mechanisms, **tokens}
    Settings(listeners=(listener(**plain),))
    said = refusal(listener(address="10.0.0.1:9093", **plain), insecure=True)
    assert "listener.external.sasl.mechanisms has" in said and "could read what clients prove themselves with" in said
    encrypted = {"protocol": "SASL_SSL", "sasl_mechanisms": mechanisms, **FILES, **tokens}
    Settings(listeners=(listener(address="10.0.0.1:9093", **encrypted),))


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({"protocol": "SSL"}, "listener.external.tls.cert.file is not set"),
        ({"protocol": "SSL", "tls_cert_file": "c"}, "listener.external.tls.key.file is not set"),
        ({"protocol": "SSL", **FILES, "tls_client_auth": "required"}, "listener.external.tls.ca.file is not set"),
        (FILES, "listener.external.tls.cert.file has no effect: listener.external.protocol is PLAINTEXT"),
        ({"protocol": "SASL_PLAINTEXT", "tls_version_min": "1.3"}, "listener.external.tls.version.min has no effect"),
        ({"sasl_mechanisms": "PLAIN"}, "listener.external.sasl.mechanisms has no effect"),
        (
            {"protocol": "SASL_PLAINTEXT", "sasl_mechanisms": "OAUTHBEARER"},
            "listener.external.sasl.oauthbearer.jwks.endpoint.url is not set",
        ),
        (
            {
                "protocol": "SASL_PLAINTEXT",
                "sasl_mechanisms": "OAUTHBEARER",
                **TOKENS,
                "sasl_oauthbearer_jwks_endpoint_url": "http://issuer/keys",
            },
            "must begin with https://, not 'http://issuer/keys'",
        ),
        ({"protocol": "SASL_PLAINTEXT", **TOKENS}, "jwks.endpoint.url has no effect"),
        ({"protocol": "SSL", **FILES, "connections_max_reauth_ms": 1}, "connections.max.reauth.ms has no effect"),
        ({"protocol": "SASL_PLAINTEXT", "sasl_mechanisms": "GSSAPI"}, "must be some of PLAIN, SCRAM-SHA-256"),
        ({"protocol": "SASL_PLAINTEXT", "sasl_mechanisms": ","}, "must be some of PLAIN, SCRAM-SHA-256"),
        ({"address": ""}, "listener.external.address is not set"),
        ({"advertised": "0.0.0.0:9093"}, "is not an address to which clients can connect"),
    ],
)
def test_members_that_contradict_each_other_are_refused_by_name(members: dict[str, Any], said: str) -> None:
    assert said in refusal(listener(**members))


def test_a_wildcard_address_needs_an_advertised_one() -> None:
    said = refusal(listener(address="[::]:9093"), insecure=True)
    assert "set listener.external.advertised to the name or address" in said
    Settings(listeners=(listener(address="[::]:9093", advertised="silt.example:9093"),), insecure=True)


def test_two_listeners_have_two_names_and_two_addresses() -> None:
    assert "two listeners have one name" in refusal(listener(), listener())
    said = refusal(listener("a"), listener("b"))
    assert "listener.a.address and listener.b.address are both 127.0.0.1:9093" in said
    Settings(listeners=(listener("a", address="127.0.0.1:0"), listener("b", address="127.0.0.1:0")))


def test_networks_of_proxies_and_mechanisms_are_lists() -> None:
    given = listener(proxy_protocol_from="10.0.0.0/8, 2001:db8::/32", sasl_mechanisms=" PLAIN ,SCRAM-SHA-256")
    assert list(map(str, given.proxies)) == ["10.0.0.0/8", "2001:db8::/32"]
    assert given.mechanisms == ("PLAIN", "SCRAM-SHA-256")
    assert listener().proxies == ()


def test_every_member_is_documented_with_its_variable() -> None:
    text = render_settings_markdown()
    for member, declared, _ in member_declarations():
        variable = f"SILTSTONE_LISTENER_NAME_{member.replace('.', '_').upper()}"
        assert f"| `listener.NAME.{member}` | `{variable}` |" in text and declared.doc in text


def test_a_listener_of_which_nothing_is_set_survives_the_way_through_the_environment() -> None:
    settings = Settings(listeners=(ListenerSettings(name="default"),))
    assert load_settings(None, settings_environment(settings), {}) == settings
