"""Which settings cannot stand together, and which texts a setting may not hold."""

from __future__ import annotations

import re
from typing import Protocol

from runtime.settings.addresses import check_bootstrap, check_metrics, check_zone
from runtime.settings.listener_checks import CheckedListeners, check_files, check_listeners
from runtime.settings.spark import SparkSettings, check_spark
from runtime.settings.values import SettingsError

GRACE_SHARE_OF_CACHES = 4
"""An agent refreshes its cached view of which object holds which records within this part of `gc.grace.ms`."""
_ZONE = re.compile(r"[^,;&]*")  # a `zone=...` in a client.id ends at any of these
_RATIO = re.compile(r"0?\.[0-9]{1,9}|0|1(\.0{1,9})?")
_NOT_ABOVE = (
    ("produce.early.bytes", "produce.file.bytes"),
    ("produce.file.bytes", "produce.buffer.bytes.max"),
    ("message.max.bytes", "socket.request.max.bytes"),
    ("message.max.bytes", "produce.buffer.bytes.max"),
    ("socket.request.max.bytes", "request.bytes.max"),
    ("fetch.max.bytes", "fetch.buffer.bytes.max"),
    ("gc.grace.ms", "purge.deadline.ms"),
    ("group.min.session.timeout.ms", "group.max.session.timeout.ms"),
    ("gc.grace.ms", "orphan.age.ms"),
    ("spark.unit.bytes", "spark.keyed.unit.bytes"),
)
"""In each pair the first may not exceed the second."""


class CheckedSettings(SparkSettings, CheckedListeners, Protocol):
    """The settings that these checks read, and by name those of `_NOT_ABOVE`."""

    @property
    def advertised_bootstrap(self) -> str: ...

    @property
    def agent_zone(self) -> str: ...

    @property
    def gc_grace_ms(self) -> int: ...

    @property
    def l0_refuse_files(self) -> int: ...

    @property
    def l0_stall_files(self) -> int: ...

    @property
    def metadata_url(self) -> str: ...

    @property
    def metrics_insecure(self) -> bool: ...

    @property
    def metrics_listen(self) -> str: ...

    @property
    def metrics_tls_ca_file(self) -> str: ...

    @property
    def metrics_tls_cert_file(self) -> str: ...

    @property
    def metrics_tls_key_file(self) -> str: ...

    @property
    def tail_poll_ms(self) -> int: ...

    @property
    def trace_sample_ratio(self) -> str: ...

    @property
    def zone_listen(self) -> str: ...

    @property
    def zone_tls_ca_file(self) -> str: ...

    @property
    def zone_tls_cert_file(self) -> str: ...

    @property
    def zone_tls_key_file(self) -> str: ...


def check_together(settings: CheckedSettings) -> None:
    """Raises SettingsError."""
    for low, high in _NOT_ABOVE:
        if _value(settings, low) > _value(settings, high):
            raise SettingsError(f"{low} ({_value(settings, low)}) may not exceed {high} ({_value(settings, high)})")
    if 0 < settings.l0_refuse_files <= settings.l0_stall_files:
        raise SettingsError(
            f"l0.stall.files ({settings.l0_stall_files}) must be below l0.refuse.files ({settings.l0_refuse_files})",
            remedy="0 disables either",
        )
    if settings.tail_poll_ms * GRACE_SHARE_OF_CACHES > settings.gc_grace_ms:
        raise SettingsError(
            f"tail.poll.ms ({settings.tail_poll_ms}) may be at most 1/{GRACE_SHARE_OF_CACHES} of gc.grace.ms"
            f" ({settings.gc_grace_ms}): an agent would read files that are deleted already",
            remedy="raise gc.grace.ms, on agents and compactors alike",
        )
    # Only if both are given: commands that need one of them leave the other empty.
    urls = settings.object_store_url, settings.metadata_url
    if all(urls) and len(set(map(is_memory, urls))) == 2:
        raise SettingsError(
            "one of object.store.url and metadata.url is memory://, and the other is not: after a restart the part"
            " that lasts would refer to a part that is gone",
            remedy="set both object.store.url and metadata.url to memory://, or neither",
        )
    if is_memory(settings.produce_store_url) or (settings.produce_store_url and is_memory(settings.object_store_url)):
        raise SettingsError(
            "produce.store.url takes no memory://, neither for itself nor beside it",
            remedy="write s3://, or file:///, or leave it empty",
        )
    if _ZONE.fullmatch(settings.agent_zone) is None:
        raise SettingsError(f"agent.zone may not hold any of `,;&`: {settings.agent_zone!r}")
    if not _RATIO.fullmatch(settings.trace_sample_ratio):
        raise SettingsError(
            f"trace.sample.ratio must be a number from 0 to 1, not {settings.trace_sample_ratio!r}",
            remedy="write it as 0.01 for one request in a hundred",
        )
    check_listeners(settings)
    check_bootstrap(settings.advertised_bootstrap)
    _check_inner_ports(settings)
    check_spark(settings)


def _check_inner_ports(settings: CheckedSettings) -> None:
    """The ports that Kafka's clients do not use."""
    cert, key, ca = settings.metrics_tls_cert_file, settings.metrics_tls_key_file, settings.metrics_tls_ca_file
    encrypts = check_files("metrics.tls", cert, key, ca, needs_ca=False)
    check_metrics(
        metrics_listen=settings.metrics_listen,
        is_mutual=encrypts and bool(ca),
        insecure=settings.metrics_insecure,
    )
    cert, key, ca = settings.zone_tls_cert_file, settings.zone_tls_key_file, settings.zone_tls_ca_file
    is_mutual = check_files("zone.tls", cert, key, ca, needs_ca=True)
    check_zone(zone_listen=settings.zone_listen, agent_zone=settings.agent_zone, is_mutual=is_mutual)


def is_memory(url: str) -> bool:
    """Whether the place is this process's memory and ends with it, in any spelling of `memory://`."""
    return url.partition(":")[0].lower() == "memory"


def _value(settings: CheckedSettings, name: str) -> int:
    return getattr(settings, name.replace(".", "_"))
