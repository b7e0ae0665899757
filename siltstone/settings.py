"""Every setting of every process, in one table: the fields of `Settings`.

A setting has one name in three spellings: `gc.grace.ms` in files and on the command line, `SILTSTONE_GC_GRACE_MS` in
the environment, `gc_grace_ms` in code. The command line wins over the environment, the environment over the file, the
file over the default. A name we do not know and a value that cannot be are refused, never skipped: a misspelt limit
that silently keeps its default is found out in production. `docs/settings.md` is generated from this table.
"""

from __future__ import annotations

import difflib
import errno
import ipaddress
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar, cast

from siltstone.errors import BadInputError

ENVIRONMENT_PREFIX = "SILTSTONE_"
VARIABLES_THAT_ARE_NO_SETTINGS = frozenset({"SILTSTONE_BOOTSTRAP", "SILTSTONE_TRACEBACK"})
"""Read by the command line itself: where agents answer, and whether an error is shown with its traceback."""
_INT31 = 2**31 - 1
_INT63 = 2**63 - 1
_WEEK_MS = 7 * 24 * 3600 * 1000
_ZONE = re.compile(r"[^,;&]*")  # what `zone=...` in a client.id can spell

T = TypeVar("T", str, int, bool)
Value = str | int | bool


class SettingsError(BadInputError):
    """A setting with a name or a value that cannot be. Nothing was started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What the table says about one setting."""

    doc: str
    section: str
    unit: str = ""
    minimum: int | None = None
    maximum: int | None = None
    choices: tuple[str, ...] = ()
    secret: bool = False
    """May hold a password: never shown."""
    acts: bool = True
    """False: known and checked, so that files written today stay good, but nothing reads it in this version."""


def _setting(default: T, section: str, doc: str, **declared: Any) -> T:
    # typed as its default, as `dataclasses.field` itself is
    about = Declared(doc=doc, section=section, **declared)
    return field(default=default, metadata={"declared": about}, repr=not about.secret)


def _count(default: int, section: str, doc: str, *, minimum: int = 1, maximum: int = _INT31) -> int:
    return _setting(default, section, doc, minimum=minimum, maximum=maximum)


def _bytes(default: int, section: str, doc: str, *, minimum: int = 1, maximum: int = _INT63, acts: bool = True) -> int:
    return _setting(default, section, doc, unit="bytes", minimum=minimum, maximum=maximum, acts=acts)


def _ms(default: int, section: str, doc: str, *, minimum: int = 1, maximum: int = _INT63, acts: bool = True) -> int:
    return _setting(default, section, doc, unit="ms", minimum=minimum, maximum=maximum, acts=acts)


_PLACES, _WRITE, _READ, _NETWORK = "Places", "Write path", "Read path", "Network"
_TOPICS, _COMPACTION, _WATCHING = "Topics and producers", "Compaction and deletion", "Watching"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of a process. Raises SettingsError when a value, or two together, cannot be."""

    # ---- places
    listen: str = _setting(
        "127.0.0.1:9092", _PLACES, "HOST:PORT on which the agent takes Kafka clients. Port 0 takes any free one."
    )
    advertised_host: str = _setting(
        "", _PLACES, "The host under which clients reach this agent. Empty: the host of `listen`."
    )
    insecure: bool = _setting(
        False, _PLACES, "Allow listening on addresses other than loopback although nobody is authenticated."
    )
    object_store_url: str = _setting(
        "", _PLACES, "Where the records live: `s3://BUCKET/PREFIX?endpoint=URL&region=R`, `file:///DIR` or `memory://`."
    )
    metadata_url: str = _setting(
        "",
        _PLACES,
        "Where it is written what lies where: `postgresql://USER@HOST:PORT/DB` or `memory://`.",
        secret=True,
    )
    agent_zone: str = _setting(
        "", _PLACES, "Availability zone of this agent; clients of `zone=` in their client.id prefer it."
    )
    drain_timeout_ms: int = _ms(30_000, _PLACES, "How long a stopping agent flushes and answers before it gives up.")

    # ---- write path
    produce_linger_ms: int = _ms(
        250, _WRITE, "A file is sealed this long after its first batch.", minimum=0, maximum=60_000
    )
    produce_file_bytes: int = _bytes(8_388_608, _WRITE, "A file is sealed when it holds this much.", maximum=_INT31)
    produce_early_bytes: int = _bytes(
        262_144, _WRITE, "A file with this much is sealed early once its writers are silent, for they wait on us."
    )
    produce_early_idle_ms: int = _ms(3, _WRITE, "Silence after which writers count as waiting.", minimum=0)
    produce_early_per_second: int = _count(
        20, _WRITE, "Early seals a second at most, which bounds the bill. 0: never early.", minimum=0
    )
    produce_early_free_bytes: int = _bytes(
        524_288, _WRITE, "An early file this large is not counted among them.", minimum=65_536
    )
    produce_buffer_bytes_max: int = _bytes(
        67_108_864, _WRITE, "Bytes buffered and in flight in an agent; above it, connections that produce are not read."
    )
    produce_uploads_max: int = _count(8, _WRITE, "Files on their way to the object store at once.")
    l0_stall_files: int = _count(
        20_000, _WRITE, "Live L0 files above which answers to produce are delayed. 0: never.", minimum=0
    )
    l0_refuse_files: int = _count(
        100_000, _WRITE, "Live L0 files above which produce is refused with a retriable error. 0: never.", minimum=0
    )

    # ---- read path
    fetch_max_bytes: int = _bytes(57_671_680, _READ, "Bytes in one fetch answer at most.", minimum=1024, maximum=_INT31)
    fetch_buffer_bytes_max: int = _bytes(
        268_435_456, _READ, "Bytes of all fetch answers being read or not taken yet; more wait their turn."
    )
    fetch_max_wait_ms: int = _ms(
        60_000, _READ, "How long a fetch may wait for data, whatever the client asks.", minimum=0
    )
    cache_hot_bytes: int = _bytes(134_217_728, _READ, "Memory for blocks of the tail.", minimum=0)
    cache_cold_bytes: int = _bytes(67_108_864, _READ, "Memory for blocks of history.", minimum=0)
    read_concurrency: int = _count(16, _READ, "Reads from the object store at once.")
    index_bytes_max: int = _bytes(
        536_870_912,
        _READ,
        "Memory for the index of all live L0 files; above it produce is refused with a retriable error.",
    )
    tail_poll_ms: int = _ms(100, _READ, "How often an agent asks for files that other agents wrote.", maximum=60_000)

    # ---- network
    socket_request_max_bytes: int = _bytes(
        104_857_600, _NETWORK, "The largest request taken.", minimum=1024, maximum=_INT31
    )
    connections_max: int = _count(2000, _NETWORK, "Client connections of one agent at most.")
    connection_requests_max: int = _count(1_000, _NETWORK, "Unanswered requests of one connection at most.")
    request_bytes_max: int = _bytes(
        268_435_456, _NETWORK, "Bytes of requests being read or waiting, over all connections."
    )

    # ---- topics and producers
    message_max_bytes: int = _bytes(
        1_048_588, _TOPICS, "The largest record batch, where the topic does not say.", maximum=_INT31
    )
    auto_create_topics_enable: bool = _setting(
        True, _TOPICS, "Make a topic when a client asks for one that is not there."
    )
    num_partitions: int = _count(1, _TOPICS, "Partitions of a topic made without a number.", maximum=100_000)
    default_replication_factor: int = _count(
        1, _TOPICS, "What is shown as replication factor; durability is the object store's.", maximum=32_767
    )
    producer_id_expiration_ms: int = _ms(
        86_400_000, _TOPICS, "A producer silent for longer may start anew with any sequence number."
    )

    # ---- compaction and deletion
    gc_grace_ms: int = _ms(900_000, _COMPACTION, "Time between unreferenced and deleted.", acts=False)
    purge_deadline_ms: int = _ms(
        _WEEK_MS, _COMPACTION, "Bytes of deleted topics and dead extents are gone after this.", acts=False
    )
    job_limit_base_ms: int = _ms(60_000, _COMPACTION, "Time limit of a merge, before its size is counted.", acts=False)
    job_limit_ms_per_mib: int = _ms(
        250, _COMPACTION, "Time limit of a merge, for each MiB of its inputs.", minimum=0, acts=False
    )
    forced_interval_ms: int = _ms(
        900_000, _COMPACTION, "A partition is merged out of turn at most this often.", acts=False
    )
    spark_merge_min_bytes: int = _bytes(
        8_589_934_592, _COMPACTION, "Merges of at least this size run on Spark.", acts=False
    )

    # ---- watching
    metrics_listen: str = _setting(
        "127.0.0.1:0", _WATCHING, "HOST:PORT for `/metrics`, `/healthz` and `/readyz`. Port 0 takes any; empty: none."
    )
    log_level: str = _setting(
        "info", _WATCHING, "The least severe message shown.", choices=("debug", "info", "warning", "error")
    )
    log_format: str = _setting("text", _WATCHING, "How messages are written.", choices=("text", "json"))

    def __post_init__(self) -> None:
        for name, declared, _ in declarations():
            _check(name, declared, getattr(self, name.replace(".", "_")), source="")
        _check_together(self)


# ---- the three spellings -------------------------------------------------------------------------------------------


def declarations() -> Iterator[tuple[str, Declared, Value]]:
    """(dotted name, what is declared, default) of every setting, in the table's order."""
    for each in fields(Settings):
        yield each.name.replace("_", "."), each.metadata["declared"], cast(Value, each.default)


def environment_name(name: str) -> str:
    return ENVIRONMENT_PREFIX + name.replace(".", "_").upper()


def load_settings(path: Path | None, environ: Mapping[str, str], overrides: Mapping[str, str]) -> Settings:
    """Settings from a TOML file (None: no file), then the environment, then the command line; later ones win.

    `overrides` maps dotted names to text. Raises SettingsError, which says where the bad setting stands.
    """
    table = {name: (declared, default) for name, declared, default in declarations()}
    given: dict[str, tuple[Value | Any, str]] = {}
    if path is not None:
        for name, value in _flatten(_read_toml(path)):
            given[_known(name, table, source=str(path))] = value, str(path)
    by_variable = {environment_name(name): name for name in table}
    for variable, text in environ.items():
        if variable.startswith(ENVIRONMENT_PREFIX) and variable not in VARIABLES_THAT_ARE_NO_SETTINGS:
            given[by_variable[_known(variable, by_variable, source="the environment")]] = text, variable
    for name, text in overrides.items():
        given[_known(name, table, source="the command line")] = text, "the command line"
    values: dict[str, Value] = {}
    for name, (value, source) in given.items():
        declared, default = table[name]
        values[name.replace(".", "_")] = _typed(name, declared, default, value, source=source)
    return Settings(**cast(dict[str, Any], values))


def settings_environment(settings: Settings) -> dict[str, str]:
    """All settings as environment variables, for a child process; `load_settings` reads them back."""
    values = {environment_name(name): getattr(settings, name.replace(".", "_")) for name, _, _ in declarations()}
    return {
        variable: str(value).lower() if isinstance(value, bool) else str(value) for variable, value in values.items()
    }


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"cannot read the settings file {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"the settings file {path} is not TOML: {error}") from error


def _flatten(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flatten(cast(dict[str, Any], value), f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _known(name: str, known: Mapping[str, object], *, source: str) -> str:
    if name in known:
        return name
    # without the prefix, which all variables share and which would make strangers look alike
    bare = {each.removeprefix(ENVIRONMENT_PREFIX): each for each in known}
    near = difflib.get_close_matches(name.removeprefix(ENVIRONMENT_PREFIX), bare, n=1, cutoff=0.8)
    raise SettingsError(
        f"there is no setting {name!r} (in {source})",
        remedy=f"did you mean {bare[near[0]]!r}?" if near else "docs/settings.md lists them all",
    )


# ---- values --------------------------------------------------------------------------------------------------------


def _typed(name: str, declared: Declared, default: Value, value: object, *, source: str) -> Value:
    """The value as its setting's type. Text comes from the environment, the command line or TOML strings."""
    typed: Value | None = None
    if isinstance(default, bool):
        typed = value if isinstance(value, bool) else {"true": True, "false": False}.get(str(value).lower())
        expected = "true or false"
    elif isinstance(default, int):
        expected = "a whole number"
        if isinstance(value, int) and not isinstance(value, bool):
            typed = value
        elif isinstance(value, str) and re.fullmatch(r"[+-]?[0-9]{1,19}", value.strip()):
            typed = int(value)
    else:
        typed, expected = (value if isinstance(value, str) else None), "text"
    if typed is None:
        raise SettingsError(
            f"{name} must be {expected}, not {_shown(declared, value)} (in {source})",
            remedy=_range_remedy(name, declared, default),
        )
    _check(name, declared, typed, source=f" (in {source})")
    return typed


def _check(name: str, declared: Declared, value: Value, *, source: str) -> None:
    if declared.choices and value not in declared.choices:
        near = difflib.get_close_matches(str(value), declared.choices, n=1, cutoff=0.6)
        raise SettingsError(
            f"{name} must be one of {', '.join(declared.choices)}, not {_shown(declared, value)}{source}",
            remedy=f"did you mean {near[0]!r}?" if near else _range_remedy(name, declared, value),
        )
    if isinstance(value, bool) or not isinstance(value, int):
        return
    unit = f" {declared.unit}" if declared.unit else ""
    limit = ""
    if declared.minimum is not None and value < declared.minimum:
        limit = f"at least {declared.minimum}"
    elif declared.maximum is not None and value > declared.maximum:
        limit = f"at most {declared.maximum}"
    if limit:
        raise SettingsError(
            f"{name} must be {limit}{unit}, not {value}{source}", remedy=_range_remedy(name, declared, value)
        )


def _range_remedy(name: str, declared: Declared, default: Value) -> str:
    """What may be written instead; `default` tells the type."""
    if declared.choices or isinstance(default, bool):
        return f"write {name} as one of {', '.join(declared.choices or ('true', 'false'))}"
    if not isinstance(default, int):
        return f"write {name} as text, in TOML within quotes"
    most = "" if declared.maximum in (None, _INT63) else f" to {declared.maximum}"
    unit = f" (in {declared.unit}, without a unit behind it)" if declared.unit else ""
    return f"write {name} as a whole number from {declared.minimum}{most}{unit}"


def _shown(declared: Declared, value: object) -> str:
    return "the value given" if declared.secret else repr(value)


def _check_together(settings: Settings) -> None:
    not_above = (
        ("produce.early.bytes", "produce.file.bytes"),
        ("produce.file.bytes", "produce.buffer.bytes.max"),
        ("message.max.bytes", "socket.request.max.bytes"),
        ("message.max.bytes", "produce.buffer.bytes.max"),
        ("socket.request.max.bytes", "request.bytes.max"),
        ("fetch.max.bytes", "fetch.buffer.bytes.max"),
    )
    for low, high in not_above:
        if _value(settings, low) > _value(settings, high):
            raise SettingsError(f"{low} ({_value(settings, low)}) may not exceed {high} ({_value(settings, high)})")
    if 0 < settings.l0_refuse_files <= settings.l0_stall_files:
        raise SettingsError(
            f"l0.stall.files ({settings.l0_stall_files}) must be below l0.refuse.files ({settings.l0_refuse_files})",
            remedy="0 disables either",
        )
    if settings.object_store_url and settings.metadata_url and len(set(map(is_memory, _urls(settings)))) == 2:
        raise SettingsError(
            "memory:// is named beside a place that lasts: what lasts would refer to what was forgotten",
            remedy="set both object.store.url and metadata.url to memory://, or neither",
        )
    if _ZONE.fullmatch(settings.agent_zone) is None:
        raise SettingsError(f"agent.zone may not hold any of `,;&`: {settings.agent_zone!r}")
    _check_addresses(settings)


def is_memory(url: str) -> bool:
    """Whether what lies there ends with its process, however `memory://` is spelt."""
    return url.partition(":")[0].lower() == "memory"


def _urls(settings: Settings) -> tuple[str, str]:
    return settings.object_store_url, settings.metadata_url


def _value(settings: Settings, name: str) -> int:
    return getattr(settings, name.replace(".", "_"))


# ---- addresses -----------------------------------------------------------------------------------------------------


class AddressInUseError(BadInputError):
    """An address cannot be listened on, mostly because somebody else does already."""

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
    """True for `localhost` and addresses of the loopback net; other names are never looked up, and so are not."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _check_addresses(settings: Settings) -> None:
    for name in ("listen", "metrics.listen"):
        address: str = getattr(settings, name.replace(".", "_"))
        if name == "metrics.listen" and not address:
            continue
        host, _ = parse_address(address, name=name)
        if not is_loopback(host) and not settings.insecure:
            raise SettingsError(
                f"{name} {address} can be reached from other machines, and nobody is authenticated",
                remedy="listen on 127.0.0.1, or pass --insecure (setting `insecure`) on a network you trust",
            )
    host, _ = parse_address(settings.listen)
    if host in ("0.0.0.0", "::") and not settings.advertised_host:  # noqa: S104
        raise SettingsError(
            f"listen {settings.listen} is no address that clients can be told to connect to",
            remedy="set advertised.host to the name or address by which they reach this machine",
        )
    if not _is_host(settings.advertised_host):
        raise SettingsError(f"advertised.host must be a host without a port, not {settings.advertised_host!r}")


def _is_host(text: str) -> bool:
    """A name or an address (IPv6 without brackets), or nothing."""
    if ":" in text:
        try:
            return ipaddress.ip_address(text).version == 6
        except ValueError:
            return False
    return re.fullmatch(r"[^\s/@\[\]]*", text) is not None


# ---- for people ----------------------------------------------------------------------------------------------------


def render_settings_markdown() -> str:
    """`docs/settings.md`."""
    lines = [
        "# Settings",
        "",
        "Generated from `siltstone/settings.py`; do not edit by hand.",
        "",
        "The command line (`--set produce.linger.ms=100`) wins over the environment",
        "(`SILTSTONE_PRODUCE_LINGER_MS=100`), the environment over the TOML file given by `--config`, the file over",
        "the default. In the file a dotted name may be written as it is or as tables: `produce.linger.ms = 100` is",
        "the same as `linger.ms = 100` under `[produce]`. Unknown names, `SILTSTONE_*` variables among them, and",
        "impossible values are refused. `object.store.url` and `metadata.url` are both `memory://` or neither is.",
    ]
    section = ""
    for name, declared, default in declarations():
        if declared.section != section:
            section = declared.section
            lines += [
                "",
                f"## {section}",
                "",
                "| setting | environment | default | allowed | meaning |",
                "|---|---|---|---|---|",
            ]
        lines.append(
            f"| `{name}` | `{environment_name(name)}` | {_default_text(default)} | {_allowed_text(declared, default)} |"
            f" {declared.doc}{'' if declared.acts else ' *(without effect in this version)*'} |"
        )
    return "\n".join(lines) + "\n"


def _default_text(default: Value) -> str:
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    return f"`{default}`" if default != "" else "(empty)"


def _allowed_text(declared: Declared, default: Value) -> str:
    if declared.choices:
        return ", ".join(f"`{choice}`" for choice in declared.choices)
    if isinstance(default, bool):
        return "`true`, `false`"
    if not isinstance(default, int):
        return "text"
    unit = f" {declared.unit}" if declared.unit else ""
    if declared.maximum in (None, _INT63, _INT31):
        return f"from {declared.minimum}{unit}"
    return f"{declared.minimum} to {declared.maximum}{unit}"
