"""Read `client.properties`: the names of Java's clients and those of librdkafka, so that one file serves all tools.

A line is NAME=VALUE, or a comment (`#`, `!`). Under Java's names backslashes escape and continue a line, as in Java;
under librdkafka's a value stands as it is. A few names that protect nothing are skipped. Any other is
refused: a misspelt one would leave a connection unprotected.
"""

from __future__ import annotations

import difflib
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from runtime.text import printable
from siltstone.kafka.security.values import MECHANISMS, PROTOCOLS, ClientConfigError, ClientSecurity

_BOTH: Final = frozenset({"security.protocol", "ssl.endpoint.identification.algorithm", "ssl.key.password"})
_JAVA: Final = frozenset(
    {
        "sasl.jaas.config",
        "sasl.mechanism",
        "ssl.keystore.location",
        "ssl.keystore.type",
        "ssl.truststore.location",
        "ssl.truststore.type",
    }
)
_LIBRDKAFKA: Final = frozenset(
    {
        "sasl.mechanisms",
        "sasl.password",
        "sasl.username",
        "ssl.ca.location",
        "ssl.certificate.location",
        "ssl.key.location",
    }
)
NAMES: Final = _BOTH | _JAVA | _LIBRDKAFKA
_OF_OTHER_CLIENTS: Final = frozenset({"bootstrap.servers", "client.id", "request.timeout.ms"})
"""Protect nothing, and are in many files that Kafka's tools share. Skipped."""
_STORE_PASSWORD: Final = re.compile(r"ssl\.(truststore|keystore)\.password")
_SECRETS: Final = ("sasl.jaas.config", "sasl.password", "ssl.key.password")
BYTES_MAX: Final = 65_536

_LINE: Final = re.compile(r"\s*([^\s=:]+)\s*[=:]?\s*(.*)", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPED: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_MODULES: Final = {
    "org.apache.kafka.common.security.plain.PlainLoginModule": ("PLAIN",),
    "org.apache.kafka.common.security.scram.ScramLoginModule": ("SCRAM-SHA-512", "SCRAM-SHA-256"),
}
_JAAS: Final = re.compile(
    r"\s*(?P<module>[\w.$]+)\s+(?:required|requisite|sufficient|optional)\b(?P<options>(?:[^;\"]|\"(?:[^\"\\]|\\.)*\")*);\s*",
    re.DOTALL,
)
_JAAS_OPTION: Final = re.compile(r"\s*(\w+)\s*=\s*(?:\"((?:[^\"\\]|\\.)*)\"|([^\s\";]+))\s*", re.DOTALL)


class ClientConfig(NamedTuple):
    security: ClientSecurity
    warnings: tuple[str, ...]


def read_client_config(path: Path) -> ClientConfig:
    """Raises ClientConfigError."""
    try:
        mode = path.stat().st_mode
        data = path.read_bytes()
    except OSError as error:
        raise ClientConfigError(
            f"{path}: {error.strerror}", remedy="correct the path after --client-config, or the file's rights"
        ) from error
    if len(data) > BYTES_MAX:
        raise ClientConfigError(f"{path} is too large for a client.properties", remedy="name the right file")
    try:
        values = _values(data.decode(), str(path))
    except UnicodeDecodeError:
        # `from None`: the error holds the text.
        raise ClientConfigError(f"{path} is not UTF-8", remedy="name a text file with NAME=VALUE lines") from None
    warnings = (
        (f"{path} holds a secret, and every user of this machine can read it: chmod 600 {path}",)
        if mode & stat.S_IROTH and any(name in values for name in _SECRETS)
        else ()
    )
    return ClientConfig(security_of(values, str(path)), warnings)


def security_of(values: Mapping[str, str], source: str) -> ClientSecurity:
    """Judge the values together. Raises ClientConfigError."""
    protocol = _one_of(values, "security.protocol", PROTOCOLS, source, default="PLAINTEXT")
    prefixes = {"sasl.": "SASL" in protocol, "ssl.": "SSL" in protocol}
    for name in values:
        for prefix, has_it in prefixes.items():
            if name.startswith(prefix) and not has_it:
                raise ClientConfigError(
                    f"{source}: {name} is set, but security.protocol is {protocol}",
                    remedy="set security.protocol=SASL_SSL, or whatever the listener has, or remove the line",
                )
    mechanism, username, password = _login(values, source) if prefixes["sasl."] else ("", "", "")
    ca = _pem(values, "ssl.truststore", source) or _path(values, "ssl.ca.location")
    store = _pem(values, "ssl.keystore", source)
    certificate = store or _path(values, "ssl.certificate.location")
    key = store or _path(values, "ssl.key.location")
    if (certificate is None) != (key is None):
        raise ClientConfigError(
            f"{source}: ssl.certificate.location and ssl.key.location belong together", remedy="set both, or neither"
        )
    host_check = values.get("ssl.endpoint.identification.algorithm", "https").lower()
    if host_check not in ("https", "", "none"):
        raise ClientConfigError(
            f"{source}: ssl.endpoint.identification.algorithm is neither https nor none",
            remedy="leave it out: then an agent's certificate must name its host",
        )
    return ClientSecurity(
        protocol=protocol,
        mechanism=mechanism,
        username=username,
        password=password,
        ca_file=ca,
        certificate_file=certificate,
        key_file=key,
        key_password=values.get("ssl.key.password", ""),
        checks_host=host_check == "https",
        source=source,
    )


def _login(values: Mapping[str, str], source: str) -> tuple[str, str, str]:
    """Mechanism, user and password."""
    name = "sasl.mechanism" if "sasl.mechanism" in values else "sasl.mechanisms"
    mechanism = _one_of(values, name, MECHANISMS, source, default="")
    if not mechanism:
        raise ClientConfigError(
            f"{source}: sasl.mechanism is missing", remedy=f"set it to one of {', '.join(MECHANISMS)}"
        )
    if jaas := values.get("sasl.jaas.config"):
        username, password = _jaas(jaas, mechanism, source)
    else:
        username, password = values.get("sasl.username", ""), values.get("sasl.password", "")
    if not username or not password:
        raise ClientConfigError(
            f"{source}: there is no user name and password",
            remedy="set sasl.username and sasl.password, or both in sasl.jaas.config",
        )
    return mechanism, username, password


def _jaas(text: str, mechanism: str, source: str) -> tuple[str, str]:
    """Nothing of the text is quoted in an error: it holds the password."""
    found = _JAAS.fullmatch(text)
    options: dict[str, str] = {}
    position, end = 0, len(found["options"]) if found else 0
    while found and position < end:
        option = _JAAS_OPTION.match(found["options"], position)
        if option is None:
            found = None if found["options"][position:].strip() else found
            break
        quoted, plain = option[2], option[3]
        options[option[1]] = plain if quoted is None else re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL)
        position = option.end()
    if found is None:
        raise ClientConfigError(
            f"{source}: sasl.jaas.config cannot be read",
            remedy='write MODULE required username="..." password="..."; with the semicolon at its end',
        )
    if mechanism not in _MODULES.get(found["module"], ()):
        raise ClientConfigError(
            f"{source}: the module in sasl.jaas.config does not fit {mechanism}",
            remedy=f"write {next(each for each, mechanisms in _MODULES.items() if mechanism in mechanisms)}",
        )
    if options.keys() - {"username", "password"}:
        raise ClientConfigError(
            f"{source}: sasl.jaas.config has other options than username and password",
            remedy="remove them; agents have no delegation tokens",
        )
    return options.get("username", ""), options.get("password", "")


def _pem(values: Mapping[str, str], store: str, source: str) -> Path | None:
    """The file of one of Java's stores, which must be PEM."""
    path = _path(values, f"{store}.location")
    if path is None:
        return None
    if values.get(f"{store}.type", "JKS").upper() != "PEM":
        raise ClientConfigError(
            f"{source}: {store}.location is read as PEM only, and {store}.type is not PEM",
            remedy=f"export the store to a PEM file and set {store}.type=PEM",
        )
    return path


def _path(values: Mapping[str, str], name: str) -> Path | None:
    return Path(values[name]) if values.get(name) else None


def _one_of(values: Mapping[str, str], name: str, choices: tuple[str, ...], source: str, *, default: str) -> str:
    given = values.get(name, default).upper()
    if given and given not in choices:
        raise ClientConfigError(
            f"{source}: {name}={_short(values[name])} is not known", remedy=f"set it to one of {', '.join(choices)}"
        )
    return given


def _short(value: str) -> str:
    """Cut: whatever stands there, an error is one line."""
    return printable(value[:60], keep="")


def _values(text: str, source: str) -> dict[str, str]:
    values: dict[str, str] = {}
    for number, name, value in _lines(text):
        if name in _OF_OTHER_CLIENTS:
            continue
        if store := _STORE_PASSWORD.fullmatch(name):
            raise ClientConfigError(
                f"{source}, line {number}: {name} is for Java's key stores, which are not read",
                remedy=f"convert the store to PEM, set ssl.{store[1]}.type=PEM, and remove the line",
            )
        if name not in NAMES:
            near = difflib.get_close_matches(name, sorted(NAMES), n=1)
            raise ClientConfigError(
                # Cut: a line that is no NAME=VALUE may be anything.
                f"{source}, line {number}: {name[:60]!r} is not a name that counts here",
                remedy=f"did you mean {near[0]}?"
                if near
                else f"remove the line; these count: {', '.join(sorted(NAMES))}",
            )
        values[name] = value
    return values


def _lines(text: str) -> Iterator[tuple[int, str, str]]:
    """Line number, name and value."""
    lines = enumerate(text.splitlines(), 1)
    for number, line in lines:
        if not line.strip() or line.lstrip()[0] in "#!":
            continue
        found = _LINE.match(line)
        if found is None:
            continue
        name, value = found[1], found[2]
        if name not in _LIBRDKAFKA:
            while _continues(value):
                value = value[:-1] + next(lines, (0, ""))[1].lstrip()
            value = _ESCAPE.sub(_unescaped, value)
        yield number, name, value.strip()


def _continues(value: str) -> bool:
    return (len(value) - len(value.rstrip("\\"))) % 2 == 1


def _unescaped(found: re.Match[str]) -> str:
    letter = found[1]
    return chr(int(letter[1:], 16)) if len(letter) == 5 else _ESCAPED.get(letter, letter)
