"""The provider's schemas as the check keeps them (infra/check/schemas/aws.json) and as Terraform wants them.

A schema file has, for each resource, data source and the provider itself, a block: `attributes` maps a name to [type,
use], with the type in Terraform's own JSON and the use in words: `required`, `optional`, `computed`, `sensitive`.
`blocks` maps a name to a nested block with its `nesting` (`single`, `list` or `set`), `min` and `max` (0: any
number).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

from infra.check.stand_in.values import message

Type: TypeAlias = "str | tuple[str, Type] | tuple[str, dict[str, Type]]"

NESTING: Final = {"single": 1, "list": 2, "set": 3}
SCALARS: Final = ("string", "number", "bool")
COLLECTIONS: Final = ("list", "set", "map")
SCHEMAS: Final = Path(__file__).parents[1] / "schemas" / "aws.json"


class DamagedSchema(Exception):
    """The schema file does not have the form described above."""


@dataclass(frozen=True, slots=True)
class Attribute:
    type: Type
    required: bool
    optional: bool
    computed: bool
    sensitive: bool


@dataclass(frozen=True, slots=True)
class Block:
    attributes: dict[str, Attribute]
    blocks: dict[str, NestedBlock]


@dataclass(frozen=True, slots=True)
class NestedBlock:
    nesting: str
    min_items: int
    max_items: int  # 0: any number
    block: Block


@dataclass(frozen=True, slots=True)
class Schemas:
    provider_version: str
    provider: Block
    resources: dict[str, Block]
    data_sources: dict[str, Block]


def type_from(told: object) -> Type:
    """A type from Terraform's JSON: `["set", ["object", {"name": "string"}]]`. Raises DamagedSchema."""
    if told in SCALARS:
        return cast("str", told)
    parts = cast("list[object]", told) if isinstance(told, list) else []
    outer, inner = parts if len(parts) == 2 else ("", None)
    if outer in COLLECTIONS:
        return cast("str", outer), type_from(inner)
    if outer == "object" and isinstance(inner, dict):
        return "object", {name: type_from(part) for name, part in cast("dict[str, object]", inner).items()}
    raise DamagedSchema(f"no type {told!r}")


def block_from(raw: dict[str, Any]) -> Block:
    attributes: dict[str, Attribute] = {}
    for name, (shape, use) in raw["attributes"].items():
        words = use.split()
        attributes[name] = Attribute(
            type=type_from(shape),
            required="required" in words,
            optional="optional" in words,
            computed="computed" in words,
            sensitive="sensitive" in words,
        )
    nested = {
        name: NestedBlock(nesting=item["nesting"], min_items=item["min"], max_items=item["max"], block=block_from(item))
        for name, item in raw["blocks"].items()
    }
    return Block(attributes=attributes, blocks=nested)


def load(path: Path = SCHEMAS) -> Schemas:
    """Raises DamagedSchema, OSError."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        return Schemas(
            provider_version=raw["provider_version"],
            provider=block_from(raw["provider"]),
            resources={name: block_from(item) for name, item in raw["resources"].items()},
            data_sources={name: block_from(item) for name, item in raw["data_sources"].items()},
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedSchema(f"{path}: {error!r}") from error


def type_json(kind: Type) -> str | list[Any]:
    """A type as Terraform writes it in JSON."""
    if isinstance(kind, str):
        return kind
    name, inner = kind
    if isinstance(inner, dict):
        return [name, {key: type_json(value) for key, value in inner.items()}]
    return [name, type_json(inner)]


def block_message(block: Block) -> bytes:
    """Schema.Block"""
    attributes = [
        message(
            (1, name),
            (2, json.dumps(type_json(attribute.type))),
            (4, attribute.required),
            (5, attribute.optional),
            (6, attribute.computed),
            (7, attribute.sensitive),
        )
        for name, attribute in block.attributes.items()
    ]
    nested = [
        message(
            (1, name),
            (2, block_message(item.block)),
            (3, NESTING[item.nesting]),
            (4, item.min_items),
            (5, item.max_items),
        )
        for name, item in block.blocks.items()
    ]
    return message(*((2, attribute) for attribute in attributes), *((3, block) for block in nested))


def schema_message(block: Block) -> bytes:
    """Schema"""
    return message((2, block_message(block)))
