"""`docs/settings.md`, generated from the table of settings."""

from __future__ import annotations

from runtime.settings.listeners import FAMILY, SECTION, member_declarations
from runtime.settings.loading import declarations, environment_name
from runtime.settings.removed import REMOVED_SETTINGS
from runtime.settings.values import INT31, INT63, Declared, Value


def render_settings_markdown() -> str:
    """`docs/settings.md`."""
    lines = [
        "# Settings",
        "",
        "Generated from `runtime/settings/table.py`; do not edit by hand.",
        "",
        "The command line (`--set produce.linger.ms=100`) wins over the environment",
        "(`SILTSTONE_PRODUCE_LINGER_MS=100`), the environment over the TOML file given by `--config`, the file over",
        "the default. In the file a dotted name may be written as it is or as tables: `produce.linger.ms = 100` is",
        "the same as `linger.ms = 100` under `[produce]`. Unknown names, unknown `SILTSTONE_*` variables and",
        "impossible values are refused. `object.store.url` and `metadata.url` are both `memory://`, or neither is.",
    ]
    section = ""
    for name, declared, default in declarations():
        if declared.section != section:
            section = declared.section
            lines += _head(section)
        lines.append(_row(name, environment_name(name), declared, default))
    lines += _head(
        SECTION,
        "An agent has a listener for each NAME that is set, of the letters a to z and digits. Clients are told the",
        "endpoints of the listener that they came by. [Listeners](operations/listeners.md) has examples.",
    )
    for member, declared, default in member_declarations():
        name = f"{FAMILY}NAME.{member}"
        lines.append(_row(name, environment_name(name), declared, default))
    lines += [
        "",
        "## Removed",
        "",
        "These were settings and are constants now. Their names are accepted with a warning and have no effect. The",
        "release after the one named refuses them.",
        "",
        "| name | removed in | constant |",
        "|---|---|---|",
    ]
    lines += [f"| `{name}` | {row.release} | {row.constant} |" for name, row in sorted(REMOVED_SETTINGS.items())]
    return "\n".join(lines) + "\n"


def _head(section: str, *about: str) -> list[str]:
    return [
        "",
        f"## {section}",
        "",
        *about,
        *([""] if about else []),
        "| setting | environment | default | allowed | meaning |",
        "|---|---|---|---|---|",
    ]


def _row(name: str, variable: str, declared: Declared, default: Value) -> str:
    allowed = _allowed_text(declared, default)
    return f"| `{name}` | `{variable}` | {_default_text(default)} | {allowed} | {declared.doc} |"


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
