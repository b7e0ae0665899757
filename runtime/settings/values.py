"""How a setting is declared, and how a given value is read and checked against its declaration.

The environment and the command line give text; TOML gives text or a typed value.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field
from typing import Any, TypeVar

from runtime.errors import BadInputError

INT31 = 2**31 - 1
INT63 = 2**63 - 1

T = TypeVar("T", str, int, bool)
Value = str | int | bool


class SettingsError(BadInputError):
    """A setting has an unknown name or an impossible value. Nothing was started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """The table's row about one setting, but for its name and default."""

    doc: str
    section: str
    unit: str = ""
    minimum: int | None = None
    maximum: int | None = None
    choices: tuple[str, ...] = ()
    secret: bool = False
    """May hold a password: never shown."""


def setting(default: T, section: str, doc: str, **declared: Any) -> T:
    # typed as its default, as `dataclasses.field` itself is
    about = Declared(doc=doc, section=section, **declared)
    return field(default=default, metadata={"declared": about}, repr=not about.secret)


def count(default: int, section: str, doc: str, *, minimum: int = 1, maximum: int = INT31) -> int:
    return setting(default, section, doc, minimum=minimum, maximum=maximum)


def size_bytes(default: int, section: str, doc: str, *, minimum: int = 1, maximum: int = INT63) -> int:
    return setting(default, section, doc, unit="bytes", minimum=minimum, maximum=maximum)


def duration_ms(default: int, section: str, doc: str, *, minimum: int = 1, maximum: int = INT63) -> int:
    return setting(default, section, doc, unit="ms", minimum=minimum, maximum=maximum)


# ---- reading -------------------------------------------------------------------------------------------------------


def typed_value(name: str, declared: Declared, default: Value, value: object, *, source: str) -> Value:
    """The value as its setting's type. Text comes from the environment, the command line or TOML strings."""
    typed: Value | None = None
    if isinstance(default, bool):
        typed = value if isinstance(value, bool) else {"true": True, "false": False}.get(str(value).lower())
        expected = "true or false"
    elif isinstance(default, int):
        expected = "a whole number"
        # A bool is an int to Python; `true` for a number is a mistake.
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
    check_value(name, declared, typed, source=f" (in {source})")
    return typed


def check_value(name: str, declared: Declared, value: Value, *, source: str) -> None:
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
    """The values that are allowed; `default` tells the type."""
    if declared.choices or isinstance(default, bool):
        return f"write {name} as one of {', '.join(declared.choices or ('true', 'false'))}"
    if not isinstance(default, int):
        return f"write {name} as text, in TOML within quotes"
    most = "" if declared.maximum in (None, INT63) else f" to {declared.maximum}"
    unit = f" (in {declared.unit}, without a unit behind it)" if declared.unit else ""
    return f"write {name} as a whole number from {declared.minimum}{most}{unit}"


def _shown(declared: Declared, value: object) -> str:
    return "the value given" if declared.secret else repr(value)
