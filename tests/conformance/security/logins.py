"""The ways to come in, and how each client is told of one: the one table that tests and docs/kafka-clients.md share."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """The proof that a client gives, and the authority that it trusts. Files are PEM."""

    protocol: str = "PLAINTEXT"
    mechanism: str = ""
    username: str = ""
    password: str = ""
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    keystore_file: str = ""
    """The key and the certificates in one file, as Java wants them."""

    @property
    def name(self) -> str:
        if self.certificate_file:
            return "mTLS"
        return " ".join(word for word in (self.protocol, self.mechanism) if word)

    @property
    def words(self) -> Mapping[str, str]:
        """For a program that has no settings of its own by name (Go)."""
        return {
            "protocol": self.protocol,
            "mechanism": self.mechanism,
            "username": self.username,
            "password": self.password,
            "ca_file": self.ca_file,
            "certificate_file": self.certificate_file,
            "key_file": self.key_file,
        }


NOTHING = Login()


def of_librdkafka(login: Login) -> Mapping[str, str]:
    """confluent-kafka, kcat (`-X`), and everything else on librdkafka."""
    return _given(
        {
            "security.protocol": login.protocol,
            "ssl.ca.location": login.ca_file,
            "ssl.certificate.location": login.certificate_file,
            "ssl.key.location": login.key_file,
            "sasl.mechanisms": login.mechanism,
            "sasl.username": login.username,
            "sasl.password": login.password,
        }
    )


def of_java(login: Login) -> Mapping[str, str]:
    module = "plain.PlainLoginModule" if login.mechanism == "PLAIN" else "scram.ScramLoginModule"
    jaas = (
        f'org.apache.kafka.common.security.{module} required username="{login.username}" password="{login.password}";'
    )
    return _given(
        {
            "security.protocol": login.protocol,
            "ssl.truststore.type": "PEM" if login.ca_file else "",
            "ssl.truststore.location": login.ca_file,
            "ssl.keystore.type": "PEM" if login.keystore_file else "",
            "ssl.keystore.location": login.keystore_file,
            "sasl.mechanism": login.mechanism,
            "sasl.jaas.config": jaas if login.mechanism else "",
        }
    )


def of_kafka_python(login: Login) -> Mapping[str, str]:
    return _given(
        {
            "security_protocol": login.protocol,
            "ssl_cafile": login.ca_file,
            "ssl_certfile": login.certificate_file,
            "ssl_keyfile": login.key_file,
            "sasl_mechanism": login.mechanism,
            "sasl_plain_username": login.username,
            "sasl_plain_password": login.password,
        }
    )


def of_aiokafka(login: Login) -> Mapping[str, Any]:
    """An SSL context of Python's standard library stands for all files."""
    config: dict[str, Any] = dict(
        _given(
            {
                "security_protocol": login.protocol,
                "sasl_mechanism": login.mechanism,
                "sasl_plain_username": login.username,
                "sasl_plain_password": login.password,
            }
        )
    )
    if login.ca_file:
        context = ssl.create_default_context(cafile=login.ca_file)
        if login.certificate_file:
            context.load_cert_chain(login.certificate_file, login.key_file)
        config["ssl_context"] = context
    return config


def _given(config: Mapping[str, str]) -> Mapping[str, str]:
    return {name: value for name, value in config.items() if value}
