"""`python -m infra.check.schemas`: writes schemas/aws.json, the part of the real provider's schemas that we use.

Terraform tells the schemas of a provider that is at hand (`terraform providers schema -json`). The types to keep are
read from the configuration (`infra/terraform/**/*.tf`). A developer runs it after using a new resource type; the check
itself then needs no provider.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, Final, TypeAlias

from infra.check.checks import TREE
from infra.check.real.mirror import Mirror, NoProvider, mirror_at_hand
from infra.check.stand_in.schema import SCHEMAS
from infra.check.terraform import Plugin, Terraform, TerraformFailed, copied

Json: TypeAlias = "str | int | list[Json] | dict[str, Json]"

NOTICE: Final = (
    "Derived from terraform-provider-aws, Copyright (c) HashiCorp, Inc., under the Mozilla Public License 2.0: see"
    " LICENSE-MPL-2.0 beside this file."
)
USED: Final = re.compile(r'^(resource|data)\s+"(aws_\w+)"', re.M)
USES: Final = ("required", "optional", "computed", "sensitive")


def used_types(tree: Path) -> tuple[set[str], set[str]]:
    """(resource types, data sources) of the configuration."""
    found = [pair for path in tree.rglob("*.tf") for pair in USED.findall(path.read_text(encoding="utf-8"))]
    resources = {name for kind, name in found if kind == "resource"}
    return resources, {name for kind, name in found if kind == "data"}


def block_of(told: dict[str, Any]) -> dict[str, Json]:
    """A block as the check keeps it: see infra/check/stand_in/schema.py."""
    attributes: dict[str, Json] = {
        name: [one["type"], " ".join(use for use in USES if one.get(use))]
        for name, one in sorted(told.get("attributes", {}).items())
    }
    blocks: dict[str, Json] = {
        name: {
            "nesting": one["nesting_mode"],
            "min": one.get("min_items", 0),
            "max": one.get("max_items", 0),
            **block_of(one["block"]),
        }
        for name, one in sorted(told.get("block_types", {}).items())
    }
    return {"attributes": attributes, "blocks": blocks}


def kept(told: dict[str, Any], version: str, resources: set[str], data_sources: set[str]) -> dict[str, Json]:
    """The part of Terraform's schemas that is kept. Raises NoProvider for a type that the provider lacks."""
    (provider,) = told["provider_schemas"].values()

    def schemas(names: set[str], listed: dict[str, Any]) -> dict[str, Json]:
        if lacking := names - listed.keys():
            raise NoProvider(f"the provider {version} has no {', '.join(sorted(lacking))}: is the type's name right?")
        return {name: block_of(listed[name]["block"]) for name in sorted(names)}

    of_provider = block_of(provider["provider"]["block"])
    # The provider's endpoint addresses, one per service, are left out: they are long, and serve only servers that stand
    # in for AWS.
    of_provider["blocks"] = {name: one for name, one in nested(of_provider) if name != "endpoints"}
    return {
        "notice": NOTICE,
        "provider_version": version,
        "provider": of_provider,
        "resources": schemas(resources, provider["resource_schemas"]),
        "data_sources": schemas(data_sources, provider["data_source_schemas"]),
    }


def nested(block: dict[str, Json]) -> list[tuple[str, Json]]:
    blocks = block["blocks"]
    return list(blocks.items()) if isinstance(blocks, dict) else []


def dumped(value: Json, indent: int = 0) -> str:
    """JSON with one attribute a line, so that a change of a schema reads as one."""
    if not isinstance(value, dict):
        return json.dumps(value)
    if not value:
        return "{}"
    pad = "  " * (indent + 1)
    lines = ",\n".join(f"{pad}{json.dumps(key)}: {dumped(item, indent + 1)}" for key, item in value.items())
    return f"{{\n{lines}\n{'  ' * indent}}}"


def text_of(mirror: Mirror, binary: str, tree: Path = TREE) -> str:
    """The text of schemas/aws.json for this tree. Raises NoProvider, TerraformFailed."""
    with tempfile.TemporaryDirectory(prefix="infra-check-") as folder:
        scratch = Path(folder)
        plugin = Plugin(mirror.version, mirror.settings(scratch))
        terraform = Terraform(binary, plugin, copied(tree, scratch / "tree"), scratch)
        return dumped(kept(terraform.schemas(), mirror.version, *used_types(tree))) + "\n"


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m infra.check.schemas", description=__doc__)
    parser.add_argument("--mirror", type=Path, help="a filesystem mirror with the provider (default: a usual place)")
    options = parser.parse_args(words)
    binary = shutil.which("terraform")
    try:
        mirror = mirror_at_hand(options.mirror)
        if binary is None or mirror is None:
            raise NoProvider("terraform or its AWS provider is not at hand: see infra/check/README.md")
        text = text_of(mirror, binary)
    except (NoProvider, TerraformFailed) as error:
        print(f"nothing was written: {error}", file=sys.stderr)  # noqa: T201
        return 1
    SCHEMAS.write_text(text, encoding="utf-8")
    print(f"{SCHEMAS.name}: as in hashicorp/aws {mirror.version}")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
