from __future__ import annotations

from pathlib import Path

import pytest

from siltstone.kafka.security.properties import NAMES, read_client_config
from siltstone.kafka.security.values import ClientConfigError, ClientSecurity

SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
LIBRDKAFKA = """\
# for kcat
security.protocol=sasl_ssl
sasl.mechanisms = SCRAM-SHA-512
sasl.username=ann
sasl.password=hunter2
ssl.ca.location=/etc/ca.pem
"""
JAVA = f"""\
security.protocol=SASL_SSL
! for kafka-topics.sh
sasl.mechanism: SCRAM-SHA-512
sasl.jaas.config={SCRAM} required \\
    username="ann" \\
    password="hunter2";
ssl.truststore.type=PEM
ssl.truststore.location=/etc/ca.pem
"""


def read(tmp_path: Path, text: str) -> ClientSecurity:
    return read_client_config(written(tmp_path, text)).security


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "client.properties"
    path.touch(mode=0o600)
    path.write_text(text)
    return path


def test_the_names_of_both_families_say_the_same(tmp_path: Path) -> None:
    # when
    one, other = read(tmp_path, LIBRDKAFKA), read(tmp_path, JAVA)
    # then
    assert one == other
    assert (one.protocol, one.mechanism, one.username, one.password) == ("SASL_SSL", "SCRAM-SHA-512", "ann", "hunter2")
    assert one.ca_file == Path("/etc/ca.pem") and one.checks_host and one.has_tls and one.has_sasl


def test_an_empty_file_is_plaintext_and_keys_and_stores_are_taken(tmp_path: Path) -> None:
    assert not read(tmp_path, "\n# nothing\n").has_tls
    keys = "ssl.certificate.location=c\nssl.key.location=k\nssl.key.password=p\n"
    one = read(tmp_path, "security.protocol=SSL\n" + keys)
    assert (one.certificate_file, one.key_file, one.key_password) == (Path("c"), Path("k"), "p")
    one = read(tmp_path, "security.protocol=SSL\nssl.keystore.location=both.pem\nssl.keystore.type=PEM\n")
    assert one.certificate_file == one.key_file == Path("both.pem")
    for value, checks in (("", False), ("none", False), ("https", True), ("HTTPS", True)):
        one = read(tmp_path, f"security.protocol=SSL\nssl.endpoint.identification.algorithm={value}\n")
        assert one.checks_host is checks


def test_backslashes_stand_for_themselves_under_librdkafkas_names_alone(tmp_path: Path) -> None:
    text = "security.protocol=SASL_SSL\nsasl.mechanisms=PLAIN\nsasl.username=a\nsasl.password=p\\u0041=:#\\\n"
    assert read(tmp_path, text).password == "p\\u0041=:#\\"
    java = text.splitlines()[:2]
    java.append(f'sasl.jaas.config={PLAIN} required username=a password="p\\u0041";')
    assert read(tmp_path, "\n".join(java)).password == "pA"


def test_names_that_protect_nothing_are_skipped(tmp_path: Path) -> None:
    more = "bootstrap.servers=127.0.0.1:9092\nclient.id=app\nrequest.timeout.ms=1000\n"
    assert read(tmp_path, more + LIBRDKAFKA) == read(tmp_path, LIBRDKAFKA)


def test_a_jaas_line_is_read_as_java_reads_it(tmp_path: Path) -> None:
    start = "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\nsasl.jaas.config="
    for options, password in (
        ('username="ann" password="a;b c"', "a;b c"),
        ('password="x=y" username=ann', "x=y"),
        # The file takes one of two backslashes, the quotes take the other.
        ('username="ann" password="q\\\\"u\\\\\\\\"', 'q"u\\'),
    ):
        assert read(tmp_path, f"{start}{SCRAM} required {options};").password == password
    for bad in (
        f'{SCRAM} required username="ann" password="hunter2"',  # no semicolon
        f'{SCRAM} username="ann" password="hunter2";',
        f'{SCRAM} required username="ann" password="hunter2;',
        f'{SCRAM} required username="ann" password="hunter2" tokenauth="true";',
        f'{PLAIN} required username="ann" password="hunter2";',
        f'{SCRAM} required username="ann" "hunter2";',
        f"{SCRAM} required;",
        "hunter2",
    ):
        with pytest.raises(ClientConfigError) as caught:
            read(tmp_path, start + bad)
        assert "hunter2" not in str(caught.value)


def test_what_cannot_be_meant_is_refused_and_no_error_shows_a_secret(tmp_path: Path) -> None:
    sasl = "security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.username=ann\nsasl.password=hunter2\n"
    for text, said in (
        ("sasl.pasword=hunter2", "did you mean sasl.password?"),
        ("acks=all", "these count"),
        ("security.protocol=TLS", "security.protocol=TLS is not known"),
        ("sasl.username=ann\nsasl.password=hunter2", "sasl.username is set, but security.protocol is PLAINTEXT"),
        ("security.protocol=SASL_PLAINTEXT\nssl.ca.location=x", "ssl.ca.location is set"),
        (sasl.replace("PLAIN\n", "SCRAM-SHA512\n"), "sasl.mechanism=SCRAM-SHA512 is not known"),
        (sasl + "ssl.truststore.password=hunter2", "convert the store to PEM, set ssl.truststore.type=PEM"),
        (sasl.replace("sasl.mechanism=PLAIN\n", ""), "sasl.mechanism is missing"),
        (sasl.replace("sasl.username=ann\n", ""), "no user name and password"),
        (sasl + "ssl.truststore.location=x.jks", "PEM"),
        (sasl + "ssl.certificate.location=x", "belong together"),
        (sasl + "ssl.endpoint.identification.algorithm=hunter2", "neither https nor none"),
    ):
        with pytest.raises(ClientConfigError) as caught:
            read(tmp_path, text)
        assert said in str(caught.value) and "hunter2" not in str(caught.value), text
    with pytest.raises(ClientConfigError, match="No such file"):
        read_client_config(tmp_path / "none")
    (tmp_path / "binary").write_bytes(b"sasl.password=hunter2\xff")
    with pytest.raises(ClientConfigError, match="not UTF-8") as caught:
        read_client_config(tmp_path / "binary")
    assert caught.value.__cause__ is None


def test_a_secret_that_every_user_can_read_is_warned_of(tmp_path: Path) -> None:
    path = written(tmp_path, LIBRDKAFKA)
    assert read_client_config(path).warnings == ()
    path.chmod(0o644)
    (warning,) = read_client_config(path).warnings
    assert f"chmod 600 {path}" in warning and "hunter2" not in warning
    # nothing secret in it
    path.write_text("security.protocol=SSL\n")
    assert read_client_config(path).warnings == ()


def test_no_secret_is_shown(tmp_path: Path) -> None:
    assert "hunter2" not in repr(read(tmp_path, LIBRDKAFKA))
    assert len(NAMES) == 15
