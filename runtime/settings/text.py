"""Settings as text: TOML in, names that are nearly right, and `docs/settings.md` out."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from runtime.settings.values import INT31, INT63, Declared, SettingsError, Value

ENVIRONMENT_PREFIX = "SILTSTONE_"


def environment_name(name: str) -> str:
    return ENVIRONMENT_PREFIX + name.replace(".", "_").upper()


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"cannot read the settings file {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"the settings file {path} is not TOML: {error}") from error


def flatten(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from flatten(cast(dict[str, Any], value), f"{prefix}{key}.")
        else:
            yield prefix + key, value


def known_name(name: str, known: Mapping[str, object], *, source: str) -> str:
    if name in known:
        return name
    # without the prefix, which all variables share and which would make strangers look alike
    bare = {each.removeprefix(ENVIRONMENT_PREFIX): each for each in known}
    near = difflib.get_close_matches(name.removeprefix(ENVIRONMENT_PREFIX), bare, n=1, cutoff=0.8)
    raise SettingsError(
        f"there is no setting {name!r} (in {source})",
        remedy=f"did you mean {bare[near[0]]!r}?" if near else "docs/settings.md lists them all",
    )


def render_markdown(declarations: Iterable[tuple[str, Declared, Value]]) -> str:
    """`docs/settings.md`."""
    lines = [
        "# Settings",
        "",
        "Generated from `runtime/settings/table.py`; do not edit by hand.",
        "",
        "The command line (`--set produce.linger.ms=100`) wins over the environment",
        "(`SILTSTONE_PRODUCE_LINGER_MS=100`), the environment over the TOML file given by `--config`, the file over",
        "the default. In the file a dotted name may be written as it is or as tables: `produce.linger.ms = 100` is",
        "the same as `linger.ms = 100` under `[produce]`. Unknown names, `SILTSTONE_*` variables among them, and",
        "impossible values are refused. `object.store.url` and `metadata.url` are both `memory://` or neither is.",
    ]
    section = ""
    for name, declared, default in declarations:
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
    if declared.maximum in (None, INT63, INT31):
        return f"from {declared.minimum}{unit}"
    return f"{declared.minimum} to {declared.maximum}{unit}"
