"""Listeners: the family of settings `listener.NAME.*`, one member for each field of `ListenerSettings`.

NAME is of `a-z` and `0-9`, so that `SILTSTONE_LISTENER_NAME_ADDRESS` can be read in one way alone. `listen` and
`advertised.host` are short forms for the listener `default`.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol, TypeAlias, cast

from runtime.settings.addresses import format_address, parse_address
from runtime.settings.values import Declared, SettingsError, Value, check_value, duration_ms, setting

FAMILY = "listener."
DEFAULT_LISTENER = "default"
DEFAULT_ADDRESS = "127.0.0.1:9092"
SECTION = "Listeners"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
REVEALING_MECHANISMS = frozenset(("PLAIN", "OAUTHBEARER"))
"""The client sends what it proves itself with: whoever reads along can do the same."""
_NAME = re.compile(r"[a-z0-9]+")

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSettings:
    """The settings of one listener. Raises SettingsError for a value that is out of range."""

    name: str
    address: str = setting("", SECTION, "HOST:PORT on which the agent listens. Port 0: any free port.")
    advertised: str = setting(
        "",
        SECTION,
        "HOST:PORT at which clients of this listener reach the agent. Empty: `address`. Port 0: the port of `address`."
        " Host `ecs`: the address of the agent's ECS task; `ecs-name`: its private name, for certificates.",
    )
    protocol: str = setting(
        "PLAINTEXT",
        SECTION,
        "Whether clients authenticate by SASL, and whether the connection is encrypted by TLS; Kafka's"
        " `security.protocol`.",
        choices=("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    )
    tls_cert_file: str = setting("", SECTION, "PEM file with the certificate and those of its issuers.")
    tls_key_file: str = setting("", SECTION, "PEM file with the key of the certificate.")
    tls_ca_file: str = setting("", SECTION, "PEM file with the authorities that may issue certificates of clients.")
    tls_crl_file: str = setting("", SECTION, "PEM file with certificates that were revoked. Empty: none is looked for.")
    tls_version_min: str = setting("1.2", SECTION, "The oldest version of TLS.", choices=("1.2", "1.3"))
    tls_client_auth: str = setting(
        "none",
        SECTION,
        "Whether clients are asked for a certificate: never, if they have one, or refused without; Kafka's"
        " `ssl.client.auth`.",
        choices=("none", "requested", "required"),
    )
    tls_principal_mapping_rules: str = setting(
        "DEFAULT",
        SECTION,
        "How the name in a client's certificate becomes its principal; Kafka's `ssl.principal.mapping.rules`.",
    )
    sasl_mechanisms: str = setting(
        "SCRAM-SHA-512,SCRAM-SHA-256",
        SECTION,
        f"Mechanisms that clients may use, separated by commas: {', '.join(f'`{each}`' for each in MECHANISMS)}."
        " `PLAIN` and `OAUTHBEARER` need TLS, but on loopback.",
    )
    sasl_oauthbearer_jwks_endpoint_url: str = setting(
        "", SECTION, "The https:// address of the keys that sign tokens (`OAUTHBEARER`; needs the extra `oauth`)."
    )
    sasl_oauthbearer_jwks_ca_file: str = setting(
        "", SECTION, "PEM file with the authorities of that address. Empty: those that the system trusts."
    )
    sasl_oauthbearer_expected_issuer: str = setting("", SECTION, "Who must have issued a token: its claim `iss`.")
    sasl_oauthbearer_expected_audience: str = setting(
        "", SECTION, "For whom a token must be issued, its claim `aud`: one of these, separated by commas."
    )
    sasl_oauthbearer_sub_claim_name: str = setting("sub", SECTION, "The claim of a token that names the user.")
    proxy_protocol_from: str = setting(
        "",
        SECTION,
        "Networks (`10.0.0.0/8`), separated by commas, of load balancers that begin each connection with the client's"
        " address (PROXY protocol, version 2). Empty: none do.",
    )
    connections_max_reauth_ms: int = duration_ms(
        0, SECTION, "Clients that came by SASL prove themselves again this often. 0: never.", minimum=0
    )

    def __post_init__(self) -> None:
        if _NAME.fullmatch(self.name) is None:
            raise _bad_name(self.name)
        for member, declared, _ in member_declarations():
            check_value(self.setting_name(member), declared, getattr(self, member.replace(".", "_")), source="")

    def setting_name(self, member: str) -> str:
        """The full name of a member's setting, for messages."""
        return f"{FAMILY}{self.name}.{member}"

    @property
    def encrypts(self) -> bool:
        return self.protocol in ("SSL", "SASL_SSL")

    @property
    def has_sasl(self) -> bool:
        return self.protocol in ("SASL_PLAINTEXT", "SASL_SSL")

    @property
    def authenticates(self) -> bool:
        """Nobody comes in without a proof of who it is."""
        return self.has_sasl or (self.encrypts and self.tls_client_auth == "required")

    @property
    def mechanisms(self) -> tuple[str, ...]:
        return tuple(_listed(self.sasl_mechanisms))

    @property
    def audience(self) -> tuple[str, ...]:
        """For whom a token may be issued."""
        return tuple(_listed(self.sasl_oauthbearer_expected_audience))

    @property
    def proxies(self) -> tuple[Network, ...]:
        """The networks that may begin a connection with a PROXY header. Raises ValueError."""
        return tuple(ipaddress.ip_network(each) for each in _listed(self.proxy_protocol_from))


class SettingsOfListeners(Protocol):
    @property
    def listen(self) -> str: ...

    @property
    def advertised_host(self) -> str: ...

    @property
    def listeners(self) -> tuple[ListenerSettings, ...]: ...


def listeners_of(settings: SettingsOfListeners) -> tuple[ListenerSettings, ...]:
    """Every listener with its address, that of `listen` among them: `default` first, then by name."""
    found = {each.name: each for each in settings.listeners}
    if DEFAULT_LISTENER in found or settings.listen or not found:
        default = found.get(DEFAULT_LISTENER) or ListenerSettings(name=DEFAULT_LISTENER)
        host = settings.advertised_host
        found[DEFAULT_LISTENER] = replace(
            default,
            address=default.address or settings.listen or DEFAULT_ADDRESS,
            advertised=default.advertised or (format_address(host, 0) if host else ""),
        )
    return tuple(sorted(found.values(), key=lambda each: (each.name != DEFAULT_LISTENER, each.name)))


def endpoint_of(listener: ListenerSettings, bound: tuple[str, int]) -> tuple[str, int]:
    """(host, port) that clients are told, once the listener is `bound` to a host and port."""
    host, port = parse_address(listener.advertised) if listener.advertised else bound
    return host, port or bound[1]


# ---- names


def member_declarations() -> Iterator[tuple[str, Declared, Value]]:
    """(dotted name without the family and the listener, declaration, default) of every member."""
    for each in fields(ListenerSettings):
        if "declared" in each.metadata:
            yield each.name.replace("_", "."), each.metadata["declared"], cast(Value, each.default)


def listener_of(name: str) -> str | None:
    """The listener that a setting's dotted name is about; None for other settings. Raises SettingsError for a listener
    that cannot have this name."""
    if not name.startswith(FAMILY):
        return None
    listener = name.removeprefix(FAMILY).partition(".")[0]
    if _NAME.fullmatch(listener) is None:
        raise _bad_name(listener)
    return listener


def names_about(listener: str) -> dict[str, tuple[Declared, Value]]:
    """The full names of a listener's settings."""
    return {f"{FAMILY}{listener}.{member}": (declared, default) for member, declared, default in member_declarations()}


def listeners_from(values: Mapping[str, Value]) -> tuple[ListenerSettings, ...]:
    """Listeners from typed values by full name, sorted by name."""
    by_listener: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        listener, _, member = name.removeprefix(FAMILY).partition(".")
        by_listener.setdefault(listener, {})[member.replace(".", "_")] = value
    return tuple(ListenerSettings(name=name, **by_listener[name]) for name in sorted(by_listener))


def listener_values(listeners: Iterable[ListenerSettings]) -> dict[str, Value]:
    """Every value by its full name; `listeners_from` makes the listeners again."""
    return {
        listener.setting_name(member): getattr(listener, member.replace(".", "_"))
        for listener in listeners
        for member, _, _ in member_declarations()
    }


def _bad_name(name: str) -> SettingsError:
    return SettingsError(
        f"a listener cannot be named {name!r}",
        remedy="a name is of the letters a to z and digits, as in listener.external.address",
    )


def _listed(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]
