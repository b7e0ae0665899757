"""The ways to come in, and how each client is told of one: the one table that tests and docs/kafka-clients.md share."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiokafka.abc import AbstractTokenProvider as AiokafkaTokens
from kafka.net.sasl.oauth import AbstractTokenProvider as KafkaPythonTokens


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
    token: str = ""
    """For OAUTHBEARER, and where the same token is to be had: a file, and an address of the issuer."""
    token_file: str = ""
    token_url: str = ""

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
            "token": self.token,
        }


NOTHING = Login()


def of_librdkafka(login: Login) -> Mapping[str, str]:
    """confluent-kafka, kcat (`-X`), and everything else on librdkafka. It fetches tokens by itself; an application that
    has them already gives them in its `oauth_cb`."""
    client = login.username if login.token_url else ""
    return _given(
        {
            "security.protocol": login.protocol,
            "ssl.ca.location": login.ca_file,
            "ssl.certificate.location": login.certificate_file,
            "ssl.key.location": login.key_file,
            "sasl.mechanisms": login.mechanism,
            "sasl.username": "" if client else login.username,
            "sasl.password": "" if client else login.password,
            "sasl.oauthbearer.method": "oidc" if client else "",
            "sasl.oauthbearer.client.id": client,
            "sasl.oauthbearer.client.secret": login.password if client else "",
            "sasl.oauthbearer.token.endpoint.url": login.token_url,
            "https.ca.location": login.ca_file if client else "",
        }
    )


def of_java(login: Login) -> Mapping[str, str]:
    """Only files that the system property `org.apache.kafka.sasl.oauthbearer.allowed.urls` names may hold a token."""
    modules = {"PLAIN": "plain.PlainLoginModule", "OAUTHBEARER": "oauthbearer.OAuthBearerLoginModule"}
    module = modules.get(login.mechanism, "scram.ScramLoginModule")
    named = "" if login.token_file else f' username="{login.username}" password="{login.password}"'
    jaas = f"org.apache.kafka.common.security.{module} required{named};"
    handler = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
    return _given(
        {
            "security.protocol": login.protocol,
            "ssl.truststore.type": "PEM" if login.ca_file else "",
            "ssl.truststore.location": login.ca_file,
            "ssl.keystore.type": "PEM" if login.keystore_file else "",
            "ssl.keystore.location": login.keystore_file,
            "sasl.mechanism": login.mechanism,
            "sasl.jaas.config": jaas if login.mechanism else "",
            "sasl.login.callback.handler.class": handler if login.token_file else "",
            "sasl.oauthbearer.token.endpoint.url": Path(login.token_file).as_uri() if login.token_file else "",
        }
    )


def of_kafka_python(login: Login) -> Mapping[str, Any]:
    files = {"ssl_cafile": login.ca_file, "ssl_certfile": login.certificate_file, "ssl_keyfile": login.key_file}
    return _given(files) | _in_python(login, _KafkaPythonToken)


def of_aiokafka(login: Login) -> Mapping[str, Any]:
    """An SSL context of Python's standard library stands for all files."""
    config = _in_python(login, _AiokafkaToken)
    if login.ca_file:
        context = ssl.create_default_context(cafile=login.ca_file)
        if login.certificate_file:
            context.load_cert_chain(login.certificate_file, login.key_file)
        config["ssl_context"] = context
    return config


def _in_python(login: Login, token: Callable[[str], object]) -> dict[str, Any]:
    config: dict[str, Any] = {**_given({"security_protocol": login.protocol, "sasl_mechanism": login.mechanism})}
    if login.token:
        config["sasl_oauth_token_provider"] = token(login.token)
    else:
        config |= _given({"sasl_plain_username": login.username, "sasl_plain_password": login.password})
    return config


class _KafkaPythonToken(KafkaPythonTokens):
    def __init__(self, token: str) -> None:
        super().__init__()
        self._token = token

    def token(self) -> str:
        return self._token


class _AiokafkaToken(AiokafkaTokens):
    def __init__(self, token: str) -> None:
        self._token = token

    async def token(self) -> str:
        return self._token


def _given(config: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in config.items() if value}
