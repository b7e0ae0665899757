"""`python -m infra.grafana`: write the dashboard from its source."""

from __future__ import annotations

import argparse
from typing import Final

from infra.grafana.source import FILE, render

DESCRIPTION: Final = """\
Write infra/grafana/siltstone.json, the dashboard, from the Python beside it.
How to import it into Grafana: docs/operations/monitoring.md.
"""
EXAMPLE: Final = """\
Example:
  python -m infra.grafana && git diff infra/grafana/siltstone.json
"""


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m infra.grafana",
        description=DESCRIPTION,
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.parse_args(arguments)
    FILE.write_text(render(), encoding="utf-8")
    print(f"written: {FILE}")  # noqa: T201


if __name__ == "__main__":
    main()
