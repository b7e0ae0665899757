"""The description of a Kafka config (type, default, range, choices), and the reading and checking of values. Pure.

The tables of configs are `metadata/configs/topic.py` and `metadata/configs/broker.py`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from runtime.errors import BadInputError

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1


class ConfigType(IntEnum):
    """Kafka's codes of config types in DescribeConfigs (ConfigDef.Type)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


class InvalidConfigError(BadInputError):
    """The config does not exist or cannot have this value. Nothing was changed."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    name: str
    type: ConfigType
    default: str
    doc: str
    effective: bool
    """False = the config is stored and described for tools, but nothing acts on it."""
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    """The allowed values of a STRING, or the allowed items of a LIST. Empty = any."""
    pattern: str = ""
    """A regular expression that a STRING, or every item of a LIST, must match. Empty = any."""


_INTEGER = re.compile(r"[+-]?[0-9]+")


def unknown_config(kind: str, name: str, known: Iterable[str]) -> InvalidConfigError:
    """The error for a name that is not in the table of this kind ("topic" or "broker")."""
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return InvalidConfigError(name, f"unknown {kind} config {name!r}{hint}")


def as_int(configs: Mapping[str, str], name: str) -> int:
    """The value of an INT or LONG in a resolved mapping. Raises InvalidConfigError when it is no whole number."""
    value = configs[name].strip()
    # Not `int` alone: it takes underscores and digits of other scripts, which Java refuses.
    if not _INTEGER.fullmatch(value):
        raise InvalidConfigError(name, f"{name}={value!r} is not a whole number")
    return int(value)


def as_float(configs: Mapping[str, str], name: str) -> float:
    """The value of a DOUBLE in a resolved mapping. Raises InvalidConfigError when it is no number."""
    try:
        return float(configs[name])
    except ValueError as error:
        raise InvalidConfigError(name, f"{name}={configs[name]!r} is not a number") from error


def as_bool(configs: Mapping[str, str], name: str) -> bool:
    """The value of a BOOLEAN in a resolved mapping, in any case, as in Kafka. Raises InvalidConfigError when it is
    neither true nor false."""
    value = configs[name].strip().lower()
    if value not in {"true", "false"}:
        raise InvalidConfigError(name, f"{name}={configs[name]!r} is neither 'true' nor 'false'")
    return value == "true"


def as_list(configs: Mapping[str, str], name: str) -> tuple[str, ...]:
    """The items of a LIST in a resolved mapping, in order, without surrounding spaces and empty items."""
    return tuple(item.strip() for item in configs[name].split(",") if item.strip())


def check_value(config: Config, value: str) -> None:
    """Raises InvalidConfigError when `value` is malformed or outside the config's range."""
    one = {config.name: value}
    match config.type:
        case ConfigType.BOOLEAN:
            as_bool(one, config.name)
        case ConfigType.INT | ConfigType.LONG:
            _check_range(config, as_int(one, config.name))
        case ConfigType.DOUBLE:
            _check_range(config, as_float(one, config.name))
        case ConfigType.STRING:
            _check_text(config, value)
        case ConfigType.LIST:
            for item in as_list(one, config.name):
                _check_text(config, item)


def _check_range(config: Config, number: float) -> None:
    above = config.least is None or number >= config.least
    below = config.most is None or number <= config.most
    if not (above and below):  # also refuses NaN
        raise InvalidConfigError(config.name, f"{config.name}={number} is outside [{config.least}, {config.most}]")


def _check_text(config: Config, value: str) -> None:
    if config.choices and value not in config.choices:
        allowed = ", ".join(config.choices)
        raise InvalidConfigError(config.name, f"{config.name}: {value!r} is not one of {allowed}")
    if config.pattern and not re.fullmatch(config.pattern, value):
        raise InvalidConfigError(config.name, f"{config.name}: {value!r} does not match {config.pattern}")
