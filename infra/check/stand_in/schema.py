"""The provider's schemas as the check keeps them (infra/check/schemas/aws.json) and as Terraform wants them.

A schema file has, for each resource, data source and the provider itself, a block: `attributes` maps a name to [type,
use], with the type in Terraform's own words and the use `required`, `optional`, `computed` or `optional computed`;
`blocks` maps a name to a nested block with its `nesting` (`single`, `list` or `set`), `min` and `max` (0: any
number).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from infra.check.stand_in.values import message

Type: TypeAlias = "str | tuple[str, Type] | tuple[str, dict[str, Type]]"

NESTING: Final = {"single": 1, "list": 2, "set": 3}
TOKEN: Final = re.compile(r"\s*([a-z_][\w-]*|[(){}=,])")
SCHEMAS: Final = Path(__file__).parents[1] / "schemas" / "aws.json"


class DamagedSchema(Exception):
    """The schema file does not have the form described above."""


@dataclass(frozen=True, slots=True)
class Attribute:
    type: Type
    required: bool
    optional: bool
    computed: bool


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


class TypeReader:
    """Reads one type expression: `set(object({key=string, values=list(string)}))`."""

    def __init__(self, text: str) -> None:
        self._tokens = TOKEN.findall(text)
        self._at = 0
        if "".join(self._tokens) != re.sub(r"\s", "", text):
            raise DamagedSchema(f"type {text!r}")

    def _next(self, expected: str = "") -> str:
        if self._at >= len(self._tokens) or (expected and self._tokens[self._at] != expected):
            raise DamagedSchema(f"type {' '.join(self._tokens)!r} wants {expected or 'more'!r} at {self._at}")
        self._at += 1
        return self._tokens[self._at - 1]

    def read(self) -> Type:
        name = self._next()
        if name in ("string", "number", "bool"):
            return name
        self._next("(")
        if name in ("list", "set", "map"):
            inner: Type = (name, self.read())
        elif name == "object":
            inner = (name, self._object())
        else:
            raise DamagedSchema(f"no type {name!r}")
        self._next(")")
        return inner

    def _object(self) -> dict[str, Type]:
        parts: dict[str, Type] = {}
        self._next("{")
        while self._tokens[self._at] != "}":
            key = self._next()
            self._next("=")
            parts[key] = self.read()
            if self._tokens[self._at] == ",":
                self._next()
        self._next("}")
        return parts


def block_from(raw: dict[str, Any]) -> Block:
    attributes: dict[str, Attribute] = {}
    for name, (shape, use) in raw["attributes"].items():
        words = use.split()
        attributes[name] = Attribute(
            type=TypeReader(shape).read(),
            required="required" in words,
            optional="optional" in words,
            computed="computed" in words,
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
