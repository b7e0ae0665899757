"""Addresses in settings: parsing and formatting `HOST:PORT`, and the rules about listening on them."""

from __future__ import annotations

import errno
import ipaddress
import re

from runtime.errors import BadInputError
from runtime.settings.values import SettingsError


class AddressInUseError(BadInputError):
    """An address cannot be listened on, mostly because another process listens on it."""

    def __init__(self, name: str, address: str, error: OSError) -> None:
        taken = error.errno == errno.EADDRINUSE
        why = "is taken by another process" if taken else f"cannot be listened on: {error.strerror or error}"
        remedy = f"stop that process, or set {name} to another port (0 takes any free one)"
        super().__init__(f"{name}: the address {address} {why}", remedy=remedy if taken else f"set {name} to another")


def parse_address(text: str, *, name: str = "listen") -> tuple[str, int]:
    """`HOST:PORT` or `[IPV6]:PORT` as (host, port). Raises SettingsError naming the setting."""
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.%\w]+)\]|([^\s:\[\]/@]+)):([0-9]{1,5})", text)
    if match is None or int(match[3]) > 65535:
        raise SettingsError(f"{name} must be HOST:PORT, not {text!r}", remedy="for example 127.0.0.1:9092")
    return match[1] or match[2], int(match[3])


def format_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """True for `localhost` and loopback addresses. Other names are never looked up, so they count as not loopback."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_bootstrap(advertised_bootstrap: str) -> None:
    """Raises SettingsError for an address to which no client can connect."""
    if advertised_bootstrap:
        _, port = parse_address(advertised_bootstrap, name="advertised.bootstrap")
        if not port:
            raise SettingsError(f"advertised.bootstrap must have the port of the load balancer, not {port}")


def check_metrics(*, metrics_listen: str, is_mutual: bool, insecure: bool) -> None:
    """Raises SettingsError for an address that other machines can reach. `is_mutual`: both sides show certificates."""
    if not metrics_listen:
        return
    host, _ = parse_address(metrics_listen, name="metrics.listen")
    if not (is_loopback(host) or is_mutual or insecure):
        raise SettingsError(
            f"metrics.listen {metrics_listen} can be reached from other machines, and clients are not authenticated",
            remedy="listen on 127.0.0.1, or set metrics.tls.cert.file, metrics.tls.key.file and metrics.tls.ca.file, or"
            " metrics.insecure to true on a network you trust",
        )


def check_zone(*, zone_listen: str, agent_zone: str, is_mutual: bool) -> None:
    """Raises SettingsError for an address at which agents of a zone cannot serve each other. `is_mutual`: both sides
    show certificates."""
    if not zone_listen:
        return
    host, _ = parse_address(zone_listen, name="zone.listen")
    if not is_loopback(host) and not is_mutual:
        raise SettingsError(
            f"zone.listen {zone_listen} can be reached from other machines, and agents do not authenticate each other",
            remedy="listen on 127.0.0.1, or set zone.tls.cert.file, zone.tls.key.file and zone.tls.ca.file",
        )
    if not agent_zone:
        raise SettingsError(
            "zone.listen is set and agent.zone is empty: agents serve only those of their own zone",
            remedy="set agent.zone, or leave zone.listen empty",
        )


def is_host(text: str) -> bool:
    """A name or an address (IPv6 without brackets), or nothing."""
    if ":" in text:
        try:
            return ipaddress.ip_address(text).version == 6
        except ValueError:
            return False
    return re.fullmatch(r"[^\s/@\[\]]*", text) is not None
