"""`python -m infra.helm`: write every setting, with its type and range, into the chart's schema of values."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, Final

from runtime.settings.listeners import FAMILY
from runtime.settings.loading import declarations
from runtime.settings.values import INT63, Declared, Value

FILE: Final = Path(__file__).parent / "siltstone" / "values.schema.json"
DESCRIPTION: Final = """\
Write the settings of runtime/settings/table.py into infra/helm/siltstone/values.schema.json.
Helm then refuses a misspelt name and a value that no program would take.
"""
EXAMPLE: Final = """\
Example:
  python -m infra.helm && git diff infra/helm/siltstone/values.schema.json
"""


def render() -> str:
    """The file with the settings of the table."""
    schema = json.loads(FILE.read_text(encoding="utf-8"))
    schema["properties"]["settings"] = {
        "type": "object",
        "description": "Settings by their dotted names (docs/settings.md). `python -m infra.helm` writes them.",
        "additionalProperties": False,
        # The templates refuse these by their names, with all others that follow from values.
        "patternProperties": {f"^{FAMILY.replace('.', chr(92) + '.')}": {}},
        "properties": {name: _taken(declared, default) for name, declared, default in declarations()},
    }
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _taken(declared: Declared, default: Value) -> dict[str, Any]:
    """The schema of a value. Text comes from `--set-string`, and from quotes in YAML."""
    if declared.choices:
        return {"enum": list(declared.choices)}
    if isinstance(default, bool):
        return {"enum": [True, False, "true", "false"]}
    if not isinstance(default, int):
        return {"type": ["string", "number"]}
    most = {} if declared.maximum in (None, INT63) else {"maximum": declared.maximum}
    # Text has no range in a schema: a program judges it, when it starts.
    return {"type": ["integer", "string"], "pattern": "^-?[0-9]{1,19}$", "minimum": declared.minimum, **most}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m infra.helm",
        description=DESCRIPTION,
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.parse_args(arguments)
    FILE.write_text(render(), encoding="utf-8")
    print(f"written: {FILE}")  # noqa: T201


if __name__ == "__main__":
    main()
