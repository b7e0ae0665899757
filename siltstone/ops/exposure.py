"""The doctor's judgement of listeners, certificates and ACLs: whether strangers can come in, and to what. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cryptography import x509

from agents.security.authorizer import AclMode, mode_of, super_users_of
from agents.security.in_force import notices_of
from runtime.errors import SiltstoneError
from runtime.settings.addresses import is_loopback, parse_address
from runtime.settings.listeners import ListenerSettings, listeners_of
from runtime.settings.table import Settings
from siltstone.ops.doctor import Check, failure, passed, warning

EXPIRES_SOON_MS = 7 * 86_400_000
"""As in the alert SiltstoneCertificateExpires."""
_DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedCertificate:
    """The certificate of a listener, with its key and authorities, good for use now."""

    certificate: x509.Certificate
    expires_ms: int
    """When it or one of its issuers expires."""
    warnings: Sequence[str] = ()


def judge_exposure(settings: Settings) -> Sequence[Check]:
    """Nothing for an agent as it is without settings: on loopback, for everybody on this machine."""
    listeners = listeners_of(settings)
    reachable = [each for each in listeners if not is_loopback(_host(each.address))]
    try:
        super_users = super_users_of(settings.super_users)
    except SiltstoneError as error:
        return [*_listeners(settings, listeners, reachable), failure("super users", error.message, error.remedy)]
    mode = mode_of(settings.acl_mode, authenticates=any(each.authenticates for each in listeners))
    if mode is AclMode.OFF and not reachable:
        return [*_listeners(settings, listeners, reachable)]
    return [*_listeners(settings, listeners, reachable), *_acls(settings, mode, super_users, listeners, reachable)]


def _listeners(
    settings: Settings, listeners: Sequence[ListenerSettings], reachable: Sequence[ListenerSettings]
) -> Iterator[Check]:
    for each in reachable:
        lacks = [
            *(["nobody proves who it is"] if not each.authenticates else []),
            *(["nothing is encrypted"] if not each.encrypts else []),
        ]
        name, address = f"listener {each.name}", each.address
        if lacks:
            yield warning(
                name,
                f"{address} can be reached from other machines, and {' and '.join(lacks)}",
                f"set {each.setting_name('protocol')} to SASL_SSL, or to SSL with"
                f" {each.setting_name('tls.client.auth')}=required, with a certificate, its key and users or an"
                " authority (docs/security.md); or listen on 127.0.0.1",
            )
        else:
            yield passed(name, f"{address} encrypts, and clients prove who they are")
    if settings.metrics_listen and not is_loopback(_host(settings.metrics_listen)) and not settings.metrics_tls_ca_file:
        yield warning(
            "metrics.listen",
            f"{settings.metrics_listen} can be reached from other machines, and tells clients' names to everybody",
            "set metrics.tls.cert.file, .key.file and .ca.file, or let only Prometheus reach it",
        )


def _acls(
    settings: Settings,
    mode: AclMode,
    super_users: frozenset[str],
    listeners: Sequence[ListenerSettings],
    reachable: Sequence[ListenerSettings],
) -> Iterator[Check]:
    if mode is AclMode.OFF:
        names = ", ".join(f"listener {each.name}" for each in reachable)
        why = " (acl.mode=auto, and no listener authenticates)" if settings.acl_mode == "auto" else ""
        yield warning(
            "acl.mode",
            f"ACLs are off{why}, and other machines can reach {names}: whoever comes in may do everything",
            "set acl.mode to shadow, write ACLs, then set it to on (docs/security.md)",
        )
        return
    for notice in notices_of(mode, settings.acl_mode, super_users, listeners):
        if notice.is_warning:
            yield warning("super users" if "super.users" in notice.text else "strangers", notice.text, notice.remedy)
        elif mode is AclMode.SHADOW:
            yield warning(
                "acl.mode",
                f"{notice.text}: every client may do everything",
                "set acl.mode to on, once the audit log has no `would be denied` any more (docs/security.md)",
            )
        else:
            yield passed("acl.mode", notice.text)


def judge_certificate(
    name: str, served: ServedCertificate, host: str | None, now_ms: int, *, setting: str
) -> Sequence[Check]:
    """`host`: where clients connect to; None if it is not known here. `setting`: the one that names the file."""
    check = f"certificate {name}"
    checks: list[Check] = []
    left_ms = served.expires_ms - now_ms
    days = left_ms / _DAY_MS
    if left_ms < EXPIRES_SOON_MS:
        remedy = "get a new one from its authority, and write it and its key over the old files"
        checks.append(
            warning(check, f"the one of {setting}, or of an issuer in its file, expires in {days:.1f} days", remedy)
        )
    if host is not None and not covers(served.certificate, host):
        checks.append(
            warning(
                check,
                f"the one of {setting} does not name {host}, where clients connect to: they refuse it",
                f"get one whose subject alternative names hold {host}, or advertise a name that it has",
            )
        )
    checks += [warning(check, each, "see to it that only this process's user may read it") for each in served.warnings]
    return checks or [passed(check, f"good for {days:.0f} days")]


def covers(certificate: x509.Certificate, host: str) -> bool:
    """Whether a client that connects to the host takes the certificate: by its subject alternative names, where `*`
    stands for the first label (RFC 6125)."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return False
    try:
        return ipaddress.ip_address(host.strip("[]")) in names.get_values_for_type(x509.IPAddress)
    except ValueError:
        pass
    asked = host.lower().rstrip(".")
    parent = asked.partition(".")[2]
    dns = [each.lower() for each in names.get_values_for_type(x509.DNSName)]
    return asked in dns or (bool(parent) and f"*.{parent}" in dns)


def advertised_host(listener: ListenerSettings) -> str | None:
    """None: known only where the agent runs."""
    host = _host(listener.advertised or listener.address)
    return None if host in ("ecs", "ecs-name") else host


def _host(address: str) -> str:
    return parse_address(address)[0]
