"""Which listeners an agent may not have. Whoever reaches a listener without authentication can read and delete every
record; whoever reads along without encryption sees them all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from runtime.settings.addresses import is_host, is_loopback, parse_address
from runtime.settings.listeners import (
    DEFAULT_LISTENER,
    MECHANISMS,
    REVEALING_MECHANISMS,
    ListenerSettings,
    SettingsOfListeners,
    listeners_of,
    member_declarations,
)
from runtime.settings.values import SettingsError

_FOR_INSECURE = "or pass --insecure (setting `insecure`) on a network you trust"


class CheckedListeners(SettingsOfListeners, Protocol):
    @property
    def insecure(self) -> bool: ...


def check_listeners(settings: CheckedListeners) -> None:
    """Raises SettingsError."""
    _check_short_forms(settings)
    given = {each.name: each for each in settings.listeners}
    if len(given) != len(settings.listeners):
        raise SettingsError(f"two listeners have one name: {', '.join(each.name for each in settings.listeners)}")
    taken: dict[str, str] = {}
    for listener in listeners_of(settings):
        short = listener.name == DEFAULT_LISTENER
        said = given.get(listener.name)
        address = "listen" if short and not (said and said.address) else listener.setting_name("address")
        advertised = "advertised.host" if short and not (said and said.advertised) else _advertised(listener)
        if not listener.address:
            raise SettingsError(f"{address} is not set", remedy="set it to the HOST:PORT on which the agent listens")
        _check_address(listener, address, advertised)
        _check_tls(listener)
        _check_sasl(listener)
        _check_proxies(listener)
        _check_reach(listener, address, insecure=settings.insecure)
        if not listener.address.endswith(":0"):
            if listener.address in taken:
                raise SettingsError(
                    f"{taken[listener.address]} and {address} are both {listener.address}",
                    remedy="give each listener a port of its own",
                )
            taken[listener.address] = address


def _check_short_forms(settings: SettingsOfListeners) -> None:
    """`listen` and `advertised.host` against what they stand for."""
    if not is_host(settings.advertised_host):
        raise SettingsError(f"advertised.host must be a host without a port, not {settings.advertised_host!r}")
    default = next((each for each in settings.listeners if each.name == DEFAULT_LISTENER), None)
    if settings.advertised_host and settings.listeners and default is None and not settings.listen:
        raise SettingsError(
            f"advertised.host is {settings.advertised_host}, and the listener `{DEFAULT_LISTENER}`, whose host it is,"
            " is not set",
            remedy=f"set {_advertised(settings.listeners[0])} instead, or set listen",
        )
    if default is None:
        return
    if settings.listen and default.address and settings.listen != default.address:
        raise SettingsError(
            f"listen is {settings.listen} and {default.setting_name('address')} is {default.address}: both are the"
            f" address of the listener `{DEFAULT_LISTENER}`",
            remedy="set one of the two",
        )
    if settings.advertised_host and default.advertised:
        host, _ = parse_address(default.advertised, name=_advertised(default))
        if host != settings.advertised_host:
            raise SettingsError(
                f"advertised.host is {settings.advertised_host} and {_advertised(default)} is {default.advertised}:"
                f" both are where clients reach the listener `{DEFAULT_LISTENER}`",
                remedy="set one of the two",
            )


def _advertised(listener: ListenerSettings) -> str:
    return listener.setting_name("advertised")


def _check_address(listener: ListenerSettings, address: str, advertised: str) -> None:
    host, _ = parse_address(listener.address, name=address)
    told = host
    if listener.advertised:
        told, _ = parse_address(listener.advertised, name=advertised)
    # Clients are sent to the advertised address, and these two mean "any", not a machine.
    if told in ("0.0.0.0", "::"):  # noqa: S104
        raise SettingsError(
            f"{advertised if listener.advertised else address} {told} is not an address to which clients can connect",
            remedy=f"set {advertised} to the name or address at which they reach this machine",
        )


def _check_tls(listener: ListenerSettings) -> None:
    if not listener.encrypts:
        _refuse_unused(listener, lambda member: member.startswith("tls."), "SSL or SASL_SSL")
        return
    for member in ("tls.cert.file", "tls.key.file"):
        if not _values(listener)[member]:
            raise SettingsError(
                f"{listener.setting_name(member)} is not set, and {listener.setting_name('protocol')} is"
                f" {listener.protocol}",
                remedy="set tls.cert.file and tls.key.file of the listener to PEM files",
            )
    if listener.tls_client_auth != "none" and not listener.tls_ca_file:
        raise SettingsError(
            f"{listener.setting_name('tls.ca.file')} is not set, and {listener.setting_name('tls.client.auth')} is"
            f" {listener.tls_client_auth}: no client's certificate could be checked",
            remedy="set it to a PEM file with the authorities that issue certificates of clients",
        )


def _check_sasl(listener: ListenerSettings) -> None:
    if not listener.has_sasl:

        def is_unused(member: str) -> bool:
            return member.startswith("sasl.") or member == "connections.max.reauth.ms"

        _refuse_unused(listener, is_unused, "SASL_PLAINTEXT or SASL_SSL")
        return
    name = listener.setting_name("sasl.mechanisms")
    unknown = [each for each in listener.mechanisms if each not in MECHANISMS]
    if unknown or not listener.mechanisms:
        raise SettingsError(
            f"{name} must be some of {', '.join(MECHANISMS)}, separated by commas, not {listener.sasl_mechanisms!r}",
            remedy=f"for example {name}=SCRAM-SHA-512",
        )
    host, _ = parse_address(listener.address, name=listener.setting_name("address"))
    revealing = sorted(REVEALING_MECHANISMS.intersection(listener.mechanisms))
    if revealing and not listener.encrypts and not is_loopback(host):
        raise SettingsError(
            f"{name} has {' and '.join(revealing)}, and {listener.setting_name('protocol')} is {listener.protocol}:"
            f" others on the way to {listener.address} could read what clients prove themselves with",
            remedy=f"set {listener.setting_name('protocol')} to SASL_SSL, or leave SCRAM alone in {name}",
        )
    _check_tokens(listener)


def _check_tokens(listener: ListenerSettings) -> None:
    values, prefix = _values(listener), "sasl.oauthbearer."
    if "OAUTHBEARER" not in listener.mechanisms:
        given = [member for member, _, default in member_declarations() if values[member] != default]
        for member in given:
            if member.startswith(prefix):
                raise SettingsError(
                    f"{listener.setting_name(member)} has no effect: {listener.setting_name('sasl.mechanisms')} is"
                    f" {listener.sasl_mechanisms}",
                    remedy=f"add OAUTHBEARER to {listener.setting_name('sasl.mechanisms')}",
                )
        return
    for member in ("jwks.endpoint.url", "expected.issuer", "expected.audience", "sub.claim.name"):
        if not values[prefix + member]:
            raise SettingsError(
                f"{listener.setting_name(prefix + member)} is not set, and {listener.setting_name('sasl.mechanisms')}"
                " has OAUTHBEARER: tokens that were issued for others would let their holders in",
                remedy="set jwks.endpoint.url, expected.issuer and expected.audience, as the issuer of the tokens says",
            )
    if not listener.sasl_oauthbearer_jwks_endpoint_url.startswith("https://"):
        raise SettingsError(
            f"{listener.setting_name(prefix + 'jwks.endpoint.url')} must begin with https://, not"
            f" {listener.sasl_oauthbearer_jwks_endpoint_url!r}: others on the way could give the agent keys of theirs",
            remedy="name the issuer's https:// address",
        )


def _check_proxies(listener: ListenerSettings) -> None:
    try:
        _ = listener.proxies
    except ValueError as error:
        name = listener.setting_name("proxy.protocol.from")
        raise SettingsError(
            f"{name} must be networks separated by commas: {error}", remedy=f"for example {name}=10.0.0.0/16"
        ) from error


def _check_reach(listener: ListenerSettings, address: str, *, insecure: bool) -> None:
    host, _ = parse_address(listener.address, name=address)
    if is_loopback(host) or insecure or (listener.authenticates and listener.encrypts):
        return
    protocol = listener.setting_name("protocol")
    if listener.encrypts:
        why = "clients are not authenticated"
        remedy = f"set {protocol} to SASL_SSL, or {listener.setting_name('tls.client.auth')} to required"
    elif listener.has_sasl:
        why, remedy = "nothing that they send is encrypted", f"set {protocol} to SASL_SSL"
    else:
        why, remedy = "clients are not authenticated", f"listen on 127.0.0.1, set {protocol} to SASL_SSL"
    raise SettingsError(
        f"{address} {listener.address} can be reached from other machines, and {why}",
        remedy=f"{remedy}, {_FOR_INSECURE}",
    )


def _refuse_unused(listener: ListenerSettings, is_unused: Callable[[str], bool], protocols: str) -> None:
    """A limit or a certificate that has no effect would be missed only by whoever relies on it."""
    values = _values(listener)
    for member, _, default in member_declarations():
        if is_unused(member) and values[member] != default:
            raise SettingsError(
                f"{listener.setting_name(member)} has no effect: {listener.setting_name('protocol')} is"
                f" {listener.protocol}",
                remedy=f"set {listener.setting_name('protocol')} to {protocols}",
            )


def _values(listener: ListenerSettings) -> Mapping[str, object]:
    return {member: getattr(listener, member.replace(".", "_")) for member, _, _ in member_declarations()}


def check_files(prefix: str, cert_file: str, key_file: str, ca_file: str, *, needs_ca: bool) -> bool:
    """Whether TLS is set up by these files. Raises SettingsError if a part of it is missing."""
    parts = {"cert": cert_file, "key": key_file, **({"ca": ca_file} if needs_ca or ca_file else {})}
    missing = [f"{prefix}.{part}.file" for part, path in parts.items() if not path]
    if missing and any((cert_file, key_file, ca_file)):
        raise SettingsError(
            f"{missing[0]} is not set, and other settings of {prefix} are",
            remedy="set all of them, or none",
        )
    return not missing
