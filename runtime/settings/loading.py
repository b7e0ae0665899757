"""Settings from a TOML file, the environment and the command line, and back into an environment.

The command line wins over the environment, the environment over the file, the file over the default. An unknown name
and an impossible value are refused, never skipped: a misspelt limit that silently keeps its default is found out in
production.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from runtime.settings.listeners import (
    FAMILY,
    listener_of,
    listener_values,
    listeners_from,
    member_declarations,
    names_about,
)
from runtime.settings.removed import REMOVED_SETTINGS, warn_of_removed
from runtime.settings.table import Settings
from runtime.settings.values import Declared, SettingsError, Value, typed_value

ENVIRONMENT_PREFIX = "SILTSTONE_"
DATA_VARIABLE = "SILTSTONE_DATA"
VARIABLES_THAT_ARE_NO_SETTINGS = frozenset(
    {"SILTSTONE_BOOTSTRAP", "SILTSTONE_CLIENT_CONFIG", DATA_VARIABLE, "SILTSTONE_TRACEBACK"}
)
"""Variables that the command line reads itself: the agents' address, how to prove oneself to them, the directory of
`siltstone dev`, and whether an error shows its traceback."""


def declarations() -> Iterator[tuple[str, Declared, Value]]:
    """(dotted name, declaration, default) of every setting, in the table's order, without those of listeners."""
    for each in fields(Settings):
        if "declared" in each.metadata:
            yield each.name.replace("_", "."), each.metadata["declared"], cast(Value, each.default)


def environment_name(name: str) -> str:
    return ENVIRONMENT_PREFIX + name.replace(".", "_").upper()


def load_settings(
    path: Path | None,
    environ: Mapping[str, str],
    overrides: Mapping[str, str],
    *,
    fixed: Mapping[str, str] = MappingProxyType({}),
    fixed_by: str = "",
) -> Settings:
    """Settings from a TOML file (None: no file), then the environment, then the command line; later ones win.

    `overrides` maps dotted names to text. `fixed` are those that the option `fixed_by` sets: another value for one of
    them is refused. A removed name is skipped with a warning. Raises SettingsError, which names the place of the bad
    setting.
    """
    table = {name: (declared, default) for name, declared, default in declarations()}
    given: dict[str, tuple[Value | Any, str]] = {}
    if path is not None:
        for name, value in _flat(_read_toml(path)):
            if _is_known(name, table, source=str(path)):
                given[name] = value, str(path)
    # Both lists: a removed name in the environment gets its warning, not the error for unknown ones.
    by_variable = {environment_name(name): name for name in (*table, *REMOVED_SETTINGS)}
    for variable, text in environ.items():
        if variable.startswith(ENVIRONMENT_PREFIX) and variable not in VARIABLES_THAT_ARE_NO_SETTINGS:
            name = by_variable.get(variable) or _listener_setting(variable)
            if name is None:
                raise _unknown(variable, map(environment_name, table), source="the environment")
            if _is_known(name, table, source=variable):
                given[name] = text, variable
    for name, text in overrides.items():
        if _is_known(name, table, source="the command line"):
            given[name] = text, "the command line"
    for name, text in fixed.items():
        value, source = given.get(name, (text, fixed_by))
        if str(value) != text:
            raise SettingsError(
                f"{fixed_by} sets {name}={text}, and {source} says {value}",
                remedy=f"remove {name} there, or leave out {fixed_by}",
            )
        given[name] = text, fixed_by
    values: dict[str, Value] = {}
    of_listeners: dict[str, Value] = {}
    for name, (value, source) in given.items():
        listener = listener_of(name)
        declared, default = (table if listener is None else names_about(listener))[name]
        into = values if listener is None else of_listeners
        into[name] = typed_value(name, declared, default, value, source=source)
    fields_given = {name.replace(".", "_"): value for name, value in values.items()}
    return Settings(listeners=listeners_from(of_listeners), **cast(dict[str, Any], fields_given))


def settings_environment(settings: Settings) -> dict[str, str]:
    """All settings as environment variables, for a child process; `load_settings` reads them back."""
    values = {name: getattr(settings, name.replace(".", "_")) for name, _, _ in declarations()}
    values |= listener_values(settings.listeners)
    return {
        environment_name(name): str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in values.items()
    }


# ---- names and files


def _is_known(name: str, table: Mapping[str, object], *, source: str) -> bool:
    """False for a removed setting, after the warning. Raises SettingsError for a name that never was a setting."""
    if name in REMOVED_SETTINGS:
        warn_of_removed(name, source=source)
        return False
    listener = listener_of(name)
    known = table if listener is None else names_about(listener)
    if name not in known:
        raise _unknown(name, known, source=source)
    return True


def _listener_setting(variable: str) -> str | None:
    """The setting behind a variable such as `SILTSTONE_LISTENER_EXTERNAL_ADDRESS`; None for other variables."""
    prefix = environment_name(FAMILY)
    if not variable.startswith(prefix):
        return None
    # A listener's name has no underscore, so the first one ends it.
    listener, _, member = variable.removeprefix(prefix).partition("_")
    known = {name.replace(".", "_").upper(): name for name, _, _ in member_declarations()}.get(member)
    if known is None or listener != listener.upper():
        names = [environment_name(name) for name in names_about(listener.lower())]
        raise _unknown(variable, names, source="the environment")
    return f"{FAMILY}{listener.lower()}.{known}"


def _unknown(name: str, known: Iterable[str], *, source: str) -> SettingsError:
    # compared without the prefix: all variables share it, so any two of them would look alike
    bare = {each.removeprefix(ENVIRONMENT_PREFIX): each for each in known}
    near = difflib.get_close_matches(name.removeprefix(ENVIRONMENT_PREFIX), bare, n=1, cutoff=0.8)
    return SettingsError(
        f"there is no setting {name!r} (in {source})",
        remedy=f"did you mean {bare[near[0]]!r}?" if near else "docs/settings.md lists them all",
    )


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(
            f"cannot read the settings file {path}: {error.strerror}",
            remedy="correct the path of --config, or give this user the right to read the file",
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"the settings file {path} is not TOML: {error}") from error


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """TOML tables as dotted names."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(cast(dict[str, Any], value), f"{prefix}{key}.")
        else:
            yield prefix + key, value
