"""Names of clients from their certificates: the same as Java's and Kafka's, whose answers are in a file."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import Any

import pytest
from cryptography import x509
from hypothesis import given, settings
from hypothesis import strategies as st

from security.principals import (
    NAME_CHARACTERS_MAX,
    MappingRuleError,
    NobodyError,
    PrincipalRules,
    distinguished_name,
)
from tests.fixtures.certificates import Authority
from tests.fixtures.chance import examples
from tests.fixtures.java_names import ANSWERS, element, name_of

KNOWN: dict[str, list[Any]] = json.loads(ANSWERS.read_text())
DEFAULT = PrincipalRules.of("DEFAULT")


def certificate_of(name: bytes) -> bytes:
    """As much of a certificate as holds a subject."""
    version, serial, nothing = element(0xA0, element(0x02, b"\x02")), element(0x02, b"\x01"), element(0x30, b"")
    return element(0x30, element(0x30, version + serial + nothing * 3 + name + nothing) + nothing)


def test_subjects_are_printed_as_java_prints_them() -> None:
    refused = 0
    for name, printed in KNOWN["names"]:
        certificate = certificate_of(bytes.fromhex(name))
        if len(printed) > NAME_CHARACTERS_MAX:
            with pytest.raises(NobodyError, match="longer than"):
                distinguished_name(certificate)
        elif any(ord(each) < 32 for each in printed):
            with pytest.raises(NobodyError, match="control characters"):
                distinguished_name(certificate)
            refused += 1
        else:
            assert distinguished_name(certificate) == printed
    assert len(KNOWN["names"]) > 300 and refused < len(KNOWN["names"]) / 3


def test_rules_map_names_as_kafka_maps_them() -> None:
    outcomes = {True: 0, False: 0}
    for rules, subject, mapped in KNOWN["maps"]:
        try:
            name = PrincipalRules.of(rules).name(subject)
        except (MappingRuleError, NobodyError):
            name = None
        assert name == mapped, (rules, subject)
        outcomes[name is None] += 1
    assert min(outcomes.values()) > 50


def test_a_real_certificate_gives_its_owner() -> None:
    authority = Authority()
    ann = authority.client("CN=Ann Example,OU=People+UID=ann,O=a\\, b,1.2.840.113549.1.9.1=ann@example.org")
    name = distinguished_name(ann.der)
    assert name.startswith("CN=Ann Example,") and name.endswith("O=a\\, b,1.2.840.113549.1.9.1=#" + name[-34:])
    assert PrincipalRules.of("RULE:CN=([^,]+),.*/$1/L").principal(ann.der) == "User:ann example"
    assert DEFAULT.principal(ann.der) == f"User:{name}"


def test_whoever_cannot_be_named_is_nobody() -> None:
    with pytest.raises(NobodyError, match="no subject"):
        DEFAULT.principal(Authority().client(x509.Name([])).der)
    with pytest.raises(NobodyError, match="longer than 1024"):
        distinguished_name(certificate_of(name_of([[("2.5.4.3", 0x0C, "x" * 1_022)]])))
    assert len(distinguished_name(certificate_of(name_of([[("2.5.4.3", 0x0C, "x" * 1_021)]])))) == 1_024
    with pytest.raises(NobodyError, match="no mapping rule matches CN=ann") as refused:
        PrincipalRules.of("RULE:O=(.*)/$1/").name("CN=ann")
    assert "DEFAULT" in refused.value.remedy
    with pytest.raises(NobodyError, match="empty name"):
        PrincipalRules.of("RULE:.*//").name("CN=ann")


def test_rules_that_cannot_be_read_are_refused_at_their_position() -> None:
    for rules, position, says in (
        ("", None, "no mapping rule"),
        (" , ", None, "no mapping rule"),
        ("x" * 20_000, None, "longer than"),
        ("DEFAULTS", 1, "neither DEFAULT nor RULE"),
        ("DEFAULT, RULE:a/b", 10, "neither"),
        ("RULE:a/b/X", 1, "neither"),
        ("RULE:a/b/, RULE:(/b/", 17, "cannot be read"),
        ("RULE:a\\p{L}/b/", 7, "\\p is not supported"),
        ("RULE:a\\Qx\\E/b/", 7, "\\Q is not supported"),
        ("RULE:[a&&b]/b/", 8, "sets within sets"),
        ("RULE:[a[b]]/b/", 8, "sets within sets"),
        ("RULE:(?P<a>x)/b/", 6, "group"),
        ("RULE:(?#x)/b/", 6, "group"),
        ("RULE:(?u)x/b/", 6, "group"),
        ("RULE:(a)/$/", 10, "after $"),
        ("RULE:(a)/x${n}/", 11, "no group n"),
        ("RULE:a/$1/", 8, "no groups"),
    ):
        with pytest.raises(MappingRuleError) as refused:
            PrincipalRules.of(rules)
        assert says in refused.value.message and refused.value.remedy, rules
        assert position is None or f"character {position} " in refused.value.message, (rules, refused.value.message)


def test_only_ascii_counts_as_letters_and_digits_as_in_java() -> None:
    rules = PrincipalRules.of("RULE:CN=(\\w+)/word/,RULE:CN=(\\d+)/digits/,DEFAULT")
    assert rules.name("CN=ann") == "word"
    assert rules.name("CN=ünï") == "CN=ünï"
    assert rules.name("CN=٣") == "CN=٣"


def test_reading_rules_takes_no_longer_than_they_are_long() -> None:
    began = time.process_time()
    for text in (
        "RULE:" + "a" * 16_000,
        "\\" * 16_000,
        "RULE:" + "\\a" * 8_000,
        ", " * 8_000,
        "RULE:a/" + "$" * 16_000,
    ):
        with pytest.raises(MappingRuleError):
            PrincipalRules.of(text)
    assert time.process_time() - began < 10


@settings(max_examples=examples(400))
@given(st.binary(max_size=200), st.integers(0, 3_000), st.integers(0, 255))
def test_no_bytes_bring_anything_but_nobody(data: bytes, at: int, byte: int) -> None:
    good = bytearray(certificate_of(name_of([[("2.5.4.3", 0x0C, "ann")], [("2.5.4.10", 0x13, "Siltstone")]])))
    good[at % len(good)] = byte
    for certificate in (data, certificate_of(data), certificate_of(element(0x30, data)), bytes(good)):
        with suppress(NobodyError):
            assert distinguished_name(certificate)
